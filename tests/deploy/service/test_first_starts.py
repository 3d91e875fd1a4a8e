"""Two concurrent first starts in one folder: one serves, the other reports it and prepares nothing."""

import os
import subprocess
import sys
from pathlib import Path

from tests.services.directories import REPOSITORY
from tests.waiting import eventually

# A start without the steps that take minutes or a port: without the sandbox image and without endless supervision.
START = """\
import sys, time
from deploy.service import __main__, start
whole = start._run
start._run = lambda *command, **_: whole(*command) if command[0] == "agent-workspace" else None
start.refuse_taken_ports = lambda *_: None
start.hold_sockets = lambda *_: None
def supervise(_path):
    print("serving", flush=True)
    sys.stdin.read()
start.supervise = supervise
__main__.run([])
"""
MADE_USER = "created user"


def start(folder: Path) -> subprocess.Popen[str]:
    """A service that runs until its input ends."""
    return subprocess.Popen(
        [sys.executable, "-c", START],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY), "AW_VAR_DIR": str(folder / "var")},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_loser_of_two_first_starts_reports_the_other_and_creates_no_user(folder: Path) -> None:
    (folder / "Procfile").write_text((REPOSITORY / "Procfile").read_text())
    starts = [start(folder) for _ in range(2)]
    eventually(lambda: any(each.poll() is not None for each in starts), deadline_seconds=60)
    [loser] = [each for each in starts if each.poll() is not None]
    [winner] = [each for each in starts if each is not loser]
    said, _ = loser.communicate()
    done, _ = winner.communicate(timeout=60)
    assert (loser.returncode, winner.returncode) == (1, 0)
    assert "The service of this folder is already running; nothing was changed." in said
    assert f"process {winner.pid}" in said or "it is starting" in said
    assert MADE_USER not in said
    assert "Traceback" not in said
    assert done.count(MADE_USER) == 1
    assert "serving" in done
