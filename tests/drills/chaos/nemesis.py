"""The nemesis: inflicts faults in an order that its seed decides, heals each, and writes down what it did."""

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from shared.clock import now
from tests.drills.chaos.faults import CONTAINERS, PARTS, Fault
from tests.drills.chaos.site import Site

# Between two faults, at most, in seconds.
PAUSE_SECONDS = {PARTS: 2.0, CONTAINERS: 3.0}


@dataclass(frozen=True)
class Inflicted:
    """A fault that was: times are seconds of the monotonic clock, `at` is what processes' logs call its beginning."""

    kind: str
    subject: str
    began: float
    ended: float
    at: datetime


class Nemesis:
    """Two hands at once: one breaks the parts of the site, one touches containers behind the service's back.

    Args:
        stretch: how many times as long as usual a fault lasts.
    """

    def __init__(self, site: Site, seed: int, *, stretch: float) -> None:
        self.log: list[Inflicted] = []
        self._stretch = stretch
        self._site = site
        self._hands = [
            (random.Random(f"{seed} parts"), PARTS),
            (random.Random(f"{seed} containers"), CONTAINERS),
        ]
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failures: list[BaseException] = []

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

    def _work(self, rng: random.Random, kinds: Sequence[type[Fault]]) -> None:
        try:
            while not self._stopped.wait(rng.uniform(0, PAUSE_SECONDS[tuple(kinds)])):
                self._afflict(rng.choice(kinds)(self._site, rng), rng)
        except BaseException as error:  # noqa: BLE001 - told by `stop`
            self._failures.append(error)

    def _afflict(self, fault: Fault, rng: random.Random) -> None:
        began, at = time.monotonic(), now()
        try:
            fault.inflict()
            self._stopped.wait(rng.uniform(*fault.seconds) * self._stretch)
        finally:
            fault.heal()
        self.log.append(Inflicted(fault.kind, fault.subject, began, time.monotonic(), at))
