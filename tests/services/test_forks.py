"""Forked processes end with the tests, even if the tests are killed."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import forks
from tests.services.directories import REPOSITORY
from tests.waiting import eventually

SCRIPT = """
import sys, time
from pathlib import Path
from tests.services import forks
forks.IMPORTED_BEFOREHAND = []
child = forks.Fork(["http.server"], {}, Path(sys.argv[1]))
print(child._process.pid, flush=True)
time.sleep(60)
"""


def test_fork_ends_with_its_parent_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as parent:
        assert parent.stdout
        child = Path("/proc", parent.stdout.readline().strip())
        eventually((tmp_path / "log").exists)
        assert child.exists()
        parent.kill()
    eventually(lambda: not child.exists())


def test_exit_code_of_a_killed_fork_is_its_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "IMPORTED_BEFOREHAND", ["pytest"])  # importing the service takes seconds
    child = forks.Fork(["http.server"], {}, tmp_path / "log")
    assert child.poll() is None
    child.kill()
    assert child.wait(30) == child.poll() == -signal.SIGKILL
