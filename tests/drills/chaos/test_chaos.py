"""A short chaos run on each database, in a process of its own. `make chaos` runs a long one."""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.services import processes
from tests.services.directories import REPOSITORY

SEED = 20261120
# One round, or more until each kind of request has succeeded. The nightly run lasts twenty minutes.
SECONDS = 20
OPERATIONS = 80
# The minimum number of injected faults.
FAULTS = 6


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_promise_is_kept(database: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    log = tmp_path / "log"
    bounds = ["--seconds", str(SECONDS), "--operations", str(OPERATIONS), "--seed", str(SEED), "--database", database]
    command = ["env", f"--chdir={REPOSITORY}", sys.executable, "-m", "tests.drills.chaos", *bounds]
    exit_code = processes.start(command, log).wait()
    output = log.read_text()
    record_property("output", output)
    assert exit_code == 0, output
    kept = re.search(r"^kept: (\d+) acknowledged writes, (\d+) faults", output, re.MULTILINE)
    assert kept is not None, output
    assert int(kept[1]) >= OPERATIONS
    assert int(kept[2]) >= FAULTS
