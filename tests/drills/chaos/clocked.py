"""`python -m tests.drills.chaos.clocked MODULE`: runs a process of the service with a clock offset from a file.

The offset applies to `shared.clock`, which all code reads for the time of day. Waits use the monotonic clock, which no
fault changes.
"""

import os
import runpy
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from shared import clock

VARIABLE = "TEST_CLOCK_FILE"


def run() -> None:
    """Offset the clock, then run the module as the main program."""
    file = Path(os.environ[VARIABLE])
    clock.machine_time = lambda: datetime.now(UTC) + timedelta(seconds=int(file.read_text()))
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run()
