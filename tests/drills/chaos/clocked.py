"""`python -m tests.drills.chaos.clocked MODULE`: runs a process of the service with clocks offset from files.

One file has the offset of the process's clock, another in its folder that of the machine. They apply to `shared.clock`,
which all code reads for the time of day; that of the machine also to the database's clock, which on SQLite is the
machine's. Waits use the monotonic clock, which no fault changes.
"""

import os
import runpy
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sqlmodel import Session

from shared import clock
from shared.db import database_clock

VARIABLE = "TEST_CLOCK_FILE"
MACHINE = "machine.clock"
# Shorter than the step of a clock, so that all processes follow the step of the database's.
READING_SECONDS = 1.0


def run() -> None:
    """Offset the clocks, then run the module as the main program."""
    offset_clocks(Path(os.environ[VARIABLE]))
    database_clock.PAUSE_SECONDS = READING_SECONDS
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def offset_clocks(file: Path) -> None:
    """Offset the clocks of this process by the files' seconds, which may change."""
    machine, read_time = file.with_name(MACHINE), database_clock._read_time

    def read_offset_time(session: Session) -> datetime:
        return read_time(session) + _offset(machine)

    clock.machine_time = lambda: datetime.now(UTC) + _offset(file) + _offset(machine)
    database_clock._read_time = read_offset_time


def _offset(file: Path) -> timedelta:
    return timedelta(seconds=int(file.read_text()))


if __name__ == "__main__":
    run()
