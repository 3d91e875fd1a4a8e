"""Faults of API processes, workers and their clocks."""

import random

from tests.drills.chaos.faults.fault import Fault
from tests.drills.chaos.site import APIS, WORKERS

CLOCK_STEPS = (-86_400, -3600, -90, -7, 7, 90, 3600, 86_400)
# After a step forward, deadlines that were written since are met late by as much, and the responses of
# idempotency keys that expired are gone (decision 46). So these steps are short.
MACHINE_STEPS = (-3600, -90, -7, 7, 15)


class ProcessFault(Fault):
    """A fault of one API process or worker."""

    def choose(self, rng: random.Random) -> str:
        return rng.choice((*APIS, *WORKERS))


class ProcessKilled(ProcessFault):
    """`kill -9`, after which a supervisor restarts the process."""

    seconds = (0.0, 4.0)

    @property
    def node(self) -> str | None:
        """The worker's node; empty for an API process, whose death affects no sandbox."""
        return WORKERS.get(self.subject, "")

    def inject(self) -> None:
        self.site.service.kill(self.subject)

    def heal(self) -> None:
        self.site.start_process(self.subject)


class ProcessFrozen(ProcessFault):
    """`kill -STOP`: a worker that continues after its lease expired must change nothing.

    The process may be stopped while it holds SQLite's write lock, so the heartbeat of any node may fail.
    """

    seconds = (1.0, 9.0)

    def inject(self) -> None:
        self.site.service.freeze(self.subject)

    def heal(self) -> None:
        self.site.service.wake(self.subject)


class ClockStepped(ProcessFault):
    """A step of one process's clock, forward or back; healing steps it back.

    While a worker's clock is wrong, the heartbeat of any node may look old.
    """

    def choose(self, rng: random.Random) -> str:
        self._seconds = rng.choice(CLOCK_STEPS)
        return super().choose(rng)

    def inject(self) -> None:
        self.site.set_clock(self.subject, self._seconds)

    def heal(self) -> None:
        self.site.set_clock(self.subject, 0)


class MachineClockStepped(Fault):
    """A step of the clock of a machine that runs everything: all processes, and SQLite, whose clock is the machine's.

    The time of the service is wrong then, in rows too.
    """

    needs_sqlite = True
    seconds = (2.0, 6.0)

    def choose(self, rng: random.Random) -> str:
        self._seconds = rng.choice(MACHINE_STEPS)
        return ""

    def inject(self) -> None:
        self.site.set_machine_clock(self._seconds)

    def heal(self) -> None:
        self.site.set_machine_clock(0)


class ServiceClocksStepped(Fault):
    """The same step of the clocks of all processes, but not of the database server's."""

    needs_postgres = True

    def choose(self, rng: random.Random) -> str:
        self._seconds = rng.choice(CLOCK_STEPS)
        return ""

    def inject(self) -> None:
        for name in (*APIS, *WORKERS):
            self.site.set_clock(name, self._seconds)

    def heal(self) -> None:
        for name in (*APIS, *WORKERS):
            self.site.set_clock(name, 0)
