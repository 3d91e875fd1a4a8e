"""The supervisor: it restarts killed processes, and leaves no process behind."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from uuid import uuid4

import pytest

from tests.services.directories import REPOSITORY
from tests.services.interpreters import Interpreter, Interpreters
from tests.waiting import eventually

DUMMIES = """\
web: echo "I am $$"; exec sleep 600
worker: trap 'echo my last words; exit' TERM; sleep 60 & echo working; while :; do sleep 0.1; done
"""


SUPERVISE = """\
from pathlib import Path
from deploy.service.configuration import write_configuration
from deploy.service.processes import Process
from deploy.service.supervision import supervise
supervise(write_configuration([Process("web", 2), Process("worker", 1)], Path("var")))
"""
# The program that prints the banner takes a second of CPU time.
WITHOUT_BANNER = "import sys; sys.executable = 'true'\n"


class Ready(BaseHTTPRequestHandler):
    """A stub of the API for the banner."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def api_port() -> Iterator[int]:
    """The port of a stub that responds like a ready API."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Ready) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@dataclass(frozen=True)
class Supervised:
    """A supervisor with dummies below it."""

    process: Interpreter
    log: Path
    mark: str

    def says(self, pattern: str) -> list[str]:
        """The matches of a pattern in the supervisor's output."""
        return re.findall(pattern, self.log.read_text(), re.MULTILINE)

    def pids(self) -> list[int]:
        """The processes below the supervisor that are alive."""
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if _holds(path, self.mark)]


def _holds(environment: Path, mark: str) -> bool:
    try:
        return mark.encode() in environment.read_bytes()
    except OSError:
        return False  # the process has ended


@pytest.fixture
def supervised(folder: Path, interpreters: Interpreters) -> Iterator[Supervised]:
    with supervising(folder, interpreters, WITHOUT_BANNER + SUPERVISE) as found:
        yield found


@contextmanager
def supervising(folder: Path, interpreters: Interpreters, code: str, api_port: int = 0) -> Iterator[Supervised]:
    (folder / "Procfile").write_text(DUMMIES)
    log, mark = folder / "log", uuid4().hex
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "AW_PORT": str(api_port), "MARK_OF_TEST": mark}
    environment["AW_CLIENT_PORT"] = "0"
    with log.open("a") as output:
        process = interpreters.start("-c", code, cwd=folder, env=environment, stdout=output)
    found = Supervised(process, log, mark)
    try:
        eventually(lambda: process.poll() is not None or _is_up(found))
        yield found
    finally:
        process.kill()
        process.wait()
        for pid in found.pids():
            with suppress(ProcessLookupError):  # the process may have ended by itself
                os.kill(pid, signal.SIGKILL)


def _is_up(found: Supervised) -> bool:
    return bool(len(_web_pids(found)) == 2 and found.says("working"))


def _web_pids(found: Supervised) -> dict[str, list[int]]:
    pids: dict[str, list[int]] = {}
    for line in found.says(r"^web\.\d +\| I am \d+$"):
        name, *_, pid = line.split()
        pids.setdefault(name, []).append(int(pid))
    return pids


def test_supervisor_prints_the_banner_of_an_api_that_is_ready(
    folder: Path, interpreters: Interpreters, api_port: int
) -> None:
    with supervising(folder, interpreters, SUPERVISE, api_port) as supervised:
        eventually(lambda: supervised.says("Agent Workspace runs"))
        assert supervised.says(rf"API +http://127\.0\.0\.1:{api_port}\b")


def test_killed_process_is_logged_and_restarted(supervised: Supervised) -> None:
    first = _web_pids(supervised)
    assert first.keys() == {"web.1", "web.2"}
    os.kill(first["web.1"][0], signal.SIGKILL)
    eventually(lambda: len(_web_pids(supervised)["web.1"]) == 2)
    assert supervised.says(r"exited: web\.1 .*SIGKILL.*not expected")
    again = _web_pids(supervised)
    assert again["web.1"][1] in supervised.pids()
    assert again["web.2"] == first["web.2"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_processes_end_with_a_stopped_supervisor(supervised: Supervised, number: signal.Signals) -> None:
    assert len(supervised.pids()) > 4
    supervised.process.send_signal(number)
    assert supervised.process.wait(30) == 0
    eventually(lambda: not supervised.pids())


def test_processes_do_not_outlive_a_killed_supervisor(supervised: Supervised) -> None:
    named = {pid for pids in _web_pids(supervised).values() for pid in pids}
    assert len(named) == 2
    supervised.process.kill()
    eventually(lambda: named.isdisjoint(supervised.pids()))
