"""Faults of API processes, workers and their clocks."""

import random

from tests.drills.chaos.faults.fault import Fault
from tests.drills.chaos.site import APIS, WORKERS

CLOCK_STEPS = (-86_400, -3600, -90, -7, 7, 90, 3600, 86_400)


class OfProcess(Fault):
    """A fault of one API process or worker."""

    def choose(self, rng: random.Random) -> str:
        return rng.choice((*APIS, *WORKERS))


class ProcessKilled(OfProcess):
    """`kill -9`, and a supervisor that starts it again."""

    seconds = (0.0, 4.0)

    @property
    def node(self) -> str | None:
        """A worker's own; an API process's death harms no node's sandboxes."""
        return WORKERS.get(self.subject, "")

    def inflict(self) -> None:
        self.site.service.kill(self.subject)

    def heal(self) -> None:
        self.site.start_process(self.subject)


class ProcessFrozen(OfProcess):
    """`kill -STOP`: a worker that wakes after its lease is gone must touch nothing.

    It may stand still with SQLite's one lock in its hands, so any node's heartbeat may fail by it.
    """

    seconds = (1.0, 9.0)

    def inflict(self) -> None:
        self.site.service.freeze(self.subject)

    def heal(self) -> None:
        self.site.service.wake(self.subject)


class ClockStepped(OfProcess):
    """One process's clock is off, forward or back, and is set right again: two steps.

    By a worker's wrong clock any node's heartbeat may look old.
    """

    def choose(self, rng: random.Random) -> str:
        self._seconds = rng.choice(CLOCK_STEPS)
        return super().choose(rng)

    def inflict(self) -> None:
        self.site.set_clock(self.subject, self._seconds)

    def heal(self) -> None:
        self.site.set_clock(self.subject, 0)


class MachineClockStepped(Fault):
    """The clock that all of them share."""

    def choose(self, rng: random.Random) -> str:
        self._seconds = rng.choice(CLOCK_STEPS)
        return ""

    def inflict(self) -> None:
        for name in (*APIS, *WORKERS):
            self.site.set_clock(name, self._seconds)

    def heal(self) -> None:
        for name in (*APIS, *WORKERS):
            self.site.set_clock(name, 0)
