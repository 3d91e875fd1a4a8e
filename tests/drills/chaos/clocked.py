"""`python -m tests.drills.chaos.clocked MODULE`: runs one of our processes with a clock that a file sets off.

What waits, does so by the monotonic clock, which no fault sets; what asks for the machine's time asks `shared.clock`.
"""

import os
import runpy
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from shared import clock

VARIABLE = "TEST_CLOCK_FILE"


def run() -> None:
    """Bend the clock, then be that module."""
    file = Path(os.environ[VARIABLE])
    clock.machine_time = lambda: datetime.now(UTC) + timedelta(seconds=int(file.read_text()))
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run()
