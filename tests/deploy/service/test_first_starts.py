"""Two concurrent first starts in one folder: one serves, the other reports it and prepares nothing."""

import os
from pathlib import Path
from typing import IO

from tests.services.directories import REPOSITORY
from tests.services.interpreters import Interpreter, Interpreters
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


def start(interpreters: Interpreters, folder: Path, log: Path, stdin: IO[str]) -> Interpreter:
    """A service that runs until its input ends."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "AW_VAR_DIR": str(folder / "var")}
    with log.open("w") as output:
        return interpreters.start("-c", START, cwd=folder, env=environment, stdin=stdin, stdout=output)


def test_loser_of_two_first_starts_reports_the_other_and_creates_no_user(
    folder: Path, interpreters: Interpreters
) -> None:
    (folder / "Procfile").write_text((REPOSITORY / "Procfile").read_text())
    logs = [folder / "log-1", folder / "log-2"]
    theirs, ours = os.pipe()
    with os.fdopen(theirs) as stdin, os.fdopen(ours, "w"):
        starts = {start(interpreters, folder, log, stdin): log for log in logs}
        eventually(lambda: any(each.poll() is not None for each in starts), deadline_seconds=60)
        [loser] = [each for each in starts if each.poll() is not None]
    [winner] = [each for each in starts if each is not loser]
    winner.wait(60)
    said, done = starts[loser].read_text(), starts[winner].read_text()
    assert (loser.returncode, winner.returncode) == (1, 0)
    assert "The service of this folder is already running; nothing was changed." in said
    assert f"process {winner.pid}" in said or "it is starting" in said
    assert MADE_USER not in said
    assert "Traceback" not in said
    assert done.count(MADE_USER) == 1
    assert "serving" in done
