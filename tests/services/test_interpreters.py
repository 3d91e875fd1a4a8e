"""Forked interpreters behave as new ones, and end with the tests."""

import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.services import interpreters as module
from tests.services.directories import REPOSITORY
from tests.services.interpreters import SERVERS, Interpreters, NewInterpreters, interpreters
from tests.waiting import eventually

SHOW = """
import json, os, sys
print(json.dumps([__name__, sys.argv, sys.path, os.getcwd(), dict(os.environ), sys.stdin.read()]))
print("error", file=sys.stderr)
"""
# Prints the pid of the server.
ASK = ("-c", "import os; print(os.getppid())")
ENDS = {
    "the end of the code": "",
    "a status": "raise SystemExit(3)",
    "a text": "raise SystemExit('wrong')",
    "an error": "1 / 0",
    "a signal": "import os; os.kill(os.getpid(), 15)",
    "a thread": "import threading, time; threading.Thread(target=lambda: (time.sleep(0.05), print('last'))).start()",
}
SLEEPING = """
import sys, time
from pathlib import Path
from tests.services.interpreters import interpreters
with interpreters(Path(sys.argv[1]), ()) as own:
    child = own.start("-c", "import time; time.sleep(60)", cwd=Path("/"), stdout=sys.stdout)
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.fixture(scope="module")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Interpreters]:
    """Interpreters without the service's modules, whose imports take longer than these tests."""
    with interpreters(tmp_path_factory.mktemp("interpreters"), ()) as started:
        yield started


def new(*arguments: str, cwd: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("option", ["-c", "-m"])
def test_fork_has_what_a_new_interpreter_has(forked: Interpreters, tmp_path: Path, option: str) -> None:
    (tmp_path / "show.py").write_text(SHOW)
    arguments = [option, {"-c": SHOW, "-m": "show"}[option], "word", "-x"]
    environment = {"LC_ALL": "C.UTF-8", "PYTHONPATH": "/nowhere:/elsewhere", "AW_PORT": "1"}
    expected = new(*arguments, cwd=tmp_path, env=environment)
    found = forked.run(*arguments, cwd=tmp_path, env=environment)
    assert expected.stdout
    assert (found.returncode, found.stdout, found.stderr) == (0, expected.stdout, expected.stderr)


def test_new_interpreter_has_imported_nothing(tmp_path: Path) -> None:
    code = "import sys; print('socket' in sys.modules); sys.exit(3)"
    done = NewInterpreters().run("-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "False\n")


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_fork_ends_as_a_new_interpreter_does(forked: Interpreters, tmp_path: Path, code: str) -> None:
    expected, found = (run("-c", code, cwd=tmp_path, env={"LC_ALL": "C.UTF-8"}) for run in (new, forked.run))
    assert (found.returncode, found.stdout) == (expected.returncode, expected.stdout)
    assert found.stderr.splitlines()[-1:] == expected.stderr.splitlines()[-1:]


def test_run_that_takes_too_long_is_killed(forked: Interpreters, tmp_path: Path) -> None:
    server = forked.run(*ASK, cwd=tmp_path).stdout.strip()
    with pytest.raises(subprocess.TimeoutExpired):
        forked.run("-c", "import time; time.sleep(60)", cwd=tmp_path, timeout=0.1)
    assert Path("/proc", server, "task", server, "children").read_text() == ""


@pytest.mark.parametrize("is_shared", [False, True])
def test_fork_ends_with_the_process_that_started_it(tmp_path: Path, *, is_shared: bool) -> None:
    command = [sys.executable, "-c", SLEEPING, str(tmp_path)]
    with interpreters(tmp_path, ()) if is_shared else nullcontext():
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY) as parent:
            assert parent.stdout
            child = Path("/proc", parent.stdout.readline().strip())
            assert child.exists()
            parent.kill()
        eventually(lambda: not child.exists())


def test_server_outlives_a_process_that_ends_before_it_reads_the_pid(
    forked: Interpreters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(connection: socket.socket) -> None:
        select.select([connection], [], [])
        connection.close()

    server = forked.run(*ASK, cwd=tmp_path).stdout
    with monkeypatch.context() as patched, (tmp_path / "log").open("w") as log:
        patched.setattr(module, "Interpreter", end)
        forked.start("-c", "import time; time.sleep(60)", cwd=tmp_path, stdout=log)
    assert forked.run(*ASK, cwd=tmp_path).stdout == server


def test_server_is_shared_and_ends_with_the_last_that_holds_it(tmp_path: Path) -> None:
    with interpreters(tmp_path, ()) as first:
        server = SERVERS[-1]
        with interpreters(tmp_path, ()) as second:
            assert second.run(*ASK, cwd=tmp_path).stdout == f"{server.pid}\n"
        assert first.run(*ASK, cwd=tmp_path).stdout == f"{server.pid}\n"
    assert server.wait(30) == 0
    with interpreters(tmp_path, ()) as third:
        assert third.run(*ASK, cwd=tmp_path).stdout == f"{SERVERS[-1].pid}\n"
        assert SERVERS[-1] is not server
