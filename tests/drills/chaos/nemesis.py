"""The nemesis: inflicts faults in an order that its seed decides, heals each, and writes down what it did."""

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence

from shared.clock import now
from tests.drills.chaos.faults import CONTAINERS, PARTS, Fault, Missed
from tests.drills.chaos.site import Site
from tests.drills.excuses import Inflicted

# Between two faults, at most.
PART_PAUSE_SECONDS, CONTAINER_PAUSE_SECONDS = 2.0, 3.0
RESUMES = frozenset({"container started", "container unpaused"})


class Nemesis:
    """Two hands at once: one breaks the parts of the site, one makes outside changes to containers.

    Args:
        stretch: how many times as long as usual a fault lasts.
    """

    def __init__(self, site: Site, seed: int, *, stretch: float) -> None:
        self.log: list[Inflicted] = []
        self._stretch = stretch
        self._site = site
        context = [kind for kind in PARTS if site.postgres or not kind.needs_postgres]
        self._hands: list[tuple[random.Random, Sequence[type[Fault]], float]] = [
            (random.Random(f"{seed} parts"), context, PART_PAUSE_SECONDS),
            (random.Random(f"{seed} containers"), CONTAINERS, CONTAINER_PAUSE_SECONDS),
        ]
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        # What each hand inflicts next, as a deck of cards: every kind comes before one comes again.
        self._decks: dict[random.Random, list[type[Fault]]] = {rng: [] for rng, _, _ in self._hands}

    @property
    def landed(self) -> Counter[str]:
        """How many faults of each kind there were; those that failed are none."""
        return Counter(fault.kind for fault in self.log if fault.landed)

    @property
    def missed(self) -> Counter[str]:
        """How many faults of each kind could not be inflicted."""
        return Counter(fault.kind for fault in self.log if not fault.landed)

    @property
    def missing(self) -> list[str]:
        """The kinds that there was no fault of."""
        return sorted({kind.kind() for _, kinds, _ in self._hands for kind in kinds} - self.landed.keys())

    def start(self) -> None:
        """Begin a round."""
        self._stopped.clear()
        self._threads = [threading.Thread(target=self._work, args=hand, daemon=True) for hand in self._hands]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End it, with every fault healed.

        Raises:
            BaseException: a fault could not be inflicted or healed; the run is worth nothing.
        """
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _work(self, rng: random.Random, kinds: Sequence[type[Fault]], pause_seconds: float) -> None:
        try:
            while not self._stopped.wait(rng.uniform(0, pause_seconds)):
                self._afflict(self._draw(rng, kinds), rng)
        except BaseException as error:  # noqa: BLE001 - told by `stop`
            self._failures.append(error)

    def _draw(self, rng: random.Random, kinds: Sequence[type[Fault]]) -> Fault:
        self._decks[rng] = self._decks[rng] or rng.sample(kinds, len(kinds))
        return self._decks[rng].pop()(self._site, rng)

    def _afflict(self, fault: Fault, rng: random.Random) -> None:
        began, at, landed = time.monotonic(), now(), True
        try:
            fault.inflict()
            self._stopped.wait(rng.uniform(*fault.seconds) * self._stretch)
        except Missed:
            landed = False
        finally:
            fault.heal()
        ended = time.monotonic()
        if fault.kind() in RESUMES:
            self._site.resumed.add(fault.subject)
        self.log.append(Inflicted(fault.kind(), fault.subject, fault.node, began, ended, at, landed))
