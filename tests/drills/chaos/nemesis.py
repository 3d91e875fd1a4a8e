"""The nemesis: injects faults in an order that its seed determines, heals each, and logs them."""

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence

from shared.clock import now
from tests.drills.chaos.faults import CONTAINERS, PARTS, Fault, Missed
from tests.drills.chaos.site import Site
from tests.drills.expected_failures import InjectedFault

# The longest pause between two faults of a thread.
PART_PAUSE_SECONDS, CONTAINER_PAUSE_SECONDS = 2.0, 3.0
RESUMES = frozenset({"container started", "container unpaused"})


class Nemesis:
    """Two threads that inject faults: one into the parts of the site, the other as outside changes to containers.

    Args:
        stretch: the factor by which faults last longer than usual.
    """

    def __init__(self, site: Site, seed: int, *, stretch: float) -> None:
        self.log: list[InjectedFault] = []
        self._stretch = stretch
        self._site = site
        context = [kind for kind in PARTS if not (kind.needs_sqlite if site.postgres else kind.needs_postgres)]
        self._schedules: list[tuple[random.Random, Sequence[type[Fault]], float]] = [
            (random.Random(f"{seed} parts"), context, PART_PAUSE_SECONDS),
            (random.Random(f"{seed} containers"), CONTAINERS, CONTAINER_PAUSE_SECONDS),
        ]
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []
        # The kinds that each thread injects next, in order: a kind repeats only after all the others.
        self._remaining: dict[random.Random, list[type[Fault]]] = {rng: [] for rng, _, _ in self._schedules}

    @property
    def effective(self) -> Counter[str]:
        """The number of injected faults of each kind, without those that could not be injected or had no effect."""
        return Counter(fault.kind for fault in self.log if fault.effective)

    @property
    def missed(self) -> Counter[str]:
        """The number of faults of each kind that could not be injected or had no effect."""
        return Counter(fault.kind for fault in self.log if not fault.effective)

    @property
    def missing(self) -> list[str]:
        """The kinds of faults that were never injected."""
        return sorted({kind.kind() for _, kinds, _ in self._schedules for kind in kinds} - self.effective.keys())

    def start(self) -> None:
        """Begin a round."""
        self._stopped.clear()
        self._threads = [
            threading.Thread(target=self._work, args=schedule, daemon=True) for schedule in self._schedules
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the round, with every fault healed.

        Raises:
            BaseException: a thread failed to inject or heal a fault, so the run is invalid.
        """
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _work(self, rng: random.Random, kinds: Sequence[type[Fault]], pause_seconds: float) -> None:
        try:
            while not self._stopped.wait(rng.uniform(0, pause_seconds)):
                self._inject(self._next_fault(rng, kinds), rng)
        except BaseException as error:  # noqa: BLE001 - raised by `stop`
            self._failures.append(error)

    def _next_fault(self, rng: random.Random, kinds: Sequence[type[Fault]]) -> Fault:
        self._remaining[rng] = self._remaining[rng] or rng.sample(kinds, len(kinds))
        return self._remaining[rng].pop()(self._site, rng)

    def _inject(self, fault: Fault, rng: random.Random) -> None:
        began, at, effective = time.monotonic(), now(), True
        try:
            fault.inject()
            self._stopped.wait(rng.uniform(*fault.seconds) * self._stretch)
            fault.confirm()
        except Missed:
            effective = False
        finally:
            fault.heal()
        ended = time.monotonic()
        if fault.kind() in RESUMES:
            self._site.resumed.add(fault.subject)
        self.log.append(InjectedFault(fault.kind(), fault.subject, fault.node, began, ended, at, effective))
