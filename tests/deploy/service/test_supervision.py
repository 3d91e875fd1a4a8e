"""`make run`: which processes there are, how they are configured, launched and supervised."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from configparser import RawConfigParser
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from deploy.service.configuration import write_configuration
from deploy.service.errors import ServiceError
from deploy.service.ports import refuse_taken_ports
from deploy.service.processes import Process, read_processes
from shared.settings import Settings
from tests.services.directories import REPOSITORY
from tests.waiting import eventually

PROCFILE = "broker: b\nweb: python -m web --port=${PORT:-1}\nworker: w: v\nflower: f\n"
FOUR = [Process("broker", 1), Process("web", 2), Process("worker", 3), Process("flower", 1)]


# --- which processes ------------------------------------------------------------------------------------------------


@pytest.fixture
def procfile(tmp_path: Path) -> Path:
    path = tmp_path / "Procfile"
    path.write_text(PROCFILE)
    return path


@pytest.mark.parametrize(
    ("wishes", "embedded", "expected"),
    [
        ([], True, {"broker": 1, "web": 1, "worker": 1, "flower": 1}),
        ([], False, {"web": 1, "worker": 1, "flower": 1}),
        (["web=2", "worker=3", "flower=0"], True, {"broker": 1, "web": 2, "worker": 3}),
        (["web=2", "web=4"], False, {"web": 4, "worker": 1, "flower": 1}),
        (["broker=5"], True, {"broker": 1, "web": 1, "worker": 1, "flower": 1}),
        (["broker=5"], False, {"web": 1, "worker": 1, "flower": 1}),
        (["broker=0"], True, {"web": 1, "worker": 1, "flower": 1}),
    ],
)
def test_how_many_of_each(procfile: Path, wishes: list[str], embedded: bool, expected: dict[str, int]) -> None:
    found = read_processes(procfile, wishes, embedded_broker=embedded)
    assert [(process.name, process.count) for process in found] == list(expected.items())


@pytest.mark.parametrize("wish", ["web", "web=", "=2", "web=two", "web=-1", "web=1.5", "unknown=1", ""])
def test_a_wish_that_makes_no_sense_is_repeated(procfile: Path, wish: str) -> None:
    with pytest.raises(ServiceError, match=rf"^{wish}: .*broker, web, worker, flower"):
        read_processes(procfile, [wish], embedded_broker=True)


def test_our_own_procfile_is_read() -> None:
    found = read_processes(REPOSITORY / "Procfile", [], embedded_broker=True)
    assert {process.name for process in found} == {"broker", "web", "worker", "flower"}


# --- their configuration --------------------------------------------------------------------------------------------


@pytest.fixture
def written(tmp_path: Path) -> RawConfigParser:
    parser = RawConfigParser()
    with write_configuration(FOUR, tmp_path / "var").open() as file:
        parser.read_file(file)
    return parser


def test_every_process_is_a_program_with_its_number(written: RawConfigParser) -> None:
    counts = {name: written.getint(f"program:{name}", "numprocs") for name in ("broker", "web", "worker", "flower")}
    assert counts == {"broker": 1, "web": 2, "worker": 3, "flower": 1}
    assert set(written.sections()) == {
        "supervisord",
        "unix_http_server",
        "rpcinterface:supervisor",
        *(f"program:{name}" for name in [*counts, "ready"]),
    }
    for name in counts:
        assert written.get(f"program:{name}", "command").startswith(f"deploy/service/launch {name} %(process_num)d ")
        assert written.getboolean(f"program:{name}", "autorestart")
        assert written.getboolean(f"program:{name}", "stopasgroup")


def test_the_broker_is_there_first_and_leaves_last(written: RawConfigParser) -> None:
    priorities = {name: written.getint(f"program:{name}", "priority") for name in ("broker", "worker", "flower", "web")}
    assert list(priorities) == sorted(priorities, key=lambda name: priorities[name])


def test_workers_get_more_time_to_finish(written: RawConfigParser) -> None:
    patience = {name: written.getint(f"program:{name}", "stopwaitsecs") for name in ("worker", "web")}
    assert patience["worker"] > patience["web"]


def test_the_announcement_is_made_once(written: RawConfigParser) -> None:
    assert not written.getboolean("program:ready", "autorestart")
    assert written.getint("program:ready", "startretries") == 0


@pytest.mark.usefixtures("written")
def test_the_var_directory_is_private(tmp_path: Path) -> None:
    var = tmp_path / "var"
    assert [path.stat().st_mode & 0o777 for path in (var, var / "run", var / "log")] == [0o700] * 3


# --- their ports ----------------------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def free() -> Iterator[int]:
    """A port on which nobody listens, and nobody will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "localhost"])
def test_a_taken_port_is_named(host: str, taken: int) -> None:
    with pytest.raises(ServiceError, match=f"{taken}.*AW_PORT"):
        refuse_taken_ports(Settings(host=host, port=taken), [Process("web", 1)])


def test_flower_s_port_counts_where_flower_is_wanted(taken: int, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_FLOWER_PORT", str(taken))
    with pytest.raises(ServiceError, match=f"{taken}.*AW_FLOWER_PORT.*FLOWER=0"):
        refuse_taken_ports(Settings(port=free), [Process("web", 1), Process("flower", 1)])
    refuse_taken_ports(Settings(port=free), [Process("web", 1)])
    refuse_taken_ports(Settings(port=taken), [Process("worker", 1)])


def test_free_ports_are_tried_and_accepted(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[str, int]] = []

    def connect(address: tuple[str, int], **options: Any) -> socket.socket:
        tried.append(address)
        return connect_really(address, **options)

    connect_really = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setenv("AW_FLOWER_PORT", str(free))
    refuse_taken_ports(Settings(port=free), FOUR)
    assert tried == [("127.0.0.1", free)] * 2, "the API's and Flower's"


# --- the launcher ---------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with our `deploy` in it, and room for a Procfile of the test's own."""
    (tmp_path / "deploy").symlink_to(REPOSITORY / "deploy")
    return tmp_path


def launch(folder: Path, line: str, *, colour: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "Procfile").write_text(f"webber: echo wrong\nweb:   {line}\n")
    command = ["deploy/service/launch", "web", "2", "8", str(colour)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_every_line_has_its_process_in_front(folder: Path) -> None:
    done = launch(folder, "echo one; echo two >&2; echo; echo $PROCESS ${NONE:-else}: a/b")
    assert done.stdout.splitlines() == ["web.2    | " + words for words in ("one", "two", "", "web.2 else: a/b")]
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_prefix_may_be_coloured(folder: Path) -> None:
    assert launch(folder, "echo one", colour=36).stdout == "\033[36mweb.2    | \033[0mone\n"


def test_the_command_s_status_is_the_launcher_s(folder: Path) -> None:
    assert launch(folder, "exit 7").returncode == 7


# --- the supervisor -------------------------------------------------------------------------------------------------

DUMMIES = """\
web: echo "I am $$"; exec sleep 600
worker: trap 'echo my last words; exit' TERM; sleep 600 & echo working; while :; do sleep 0.1; done
"""
SUPERVISE = """\
from pathlib import Path
from deploy.service.configuration import write_configuration
from deploy.service.processes import Process
from deploy.service.supervision import supervise
supervise(write_configuration([Process("web", 2), Process("worker", 1)], Path("var")))
"""


class Ready(BaseHTTPRequestHandler):
    """The API, as far as the announcement asks for it."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/ready" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def api_port() -> Iterator[int]:
    """Where something answers as a ready API does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Ready) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@dataclass(frozen=True)
class Supervised:
    """A supervisor with dummies below it."""

    process: subprocess.Popen[bytes]
    log: Path
    mark: str

    def says(self, pattern: str) -> list[str]:
        """What of its output matches."""
        return re.findall(pattern, self.log.read_text(), re.MULTILINE)

    def pids(self) -> list[int]:
        """Every process that was started for it and is not gone."""
        return [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/environ") if _holds(path, self.mark)]


def _holds(environment: Path, mark: str) -> bool:
    try:
        return mark.encode() in environment.read_bytes()
    except OSError:
        return False  # it is gone by now


@pytest.fixture
def supervised(folder: Path, api_port: int) -> Iterator[Supervised]:
    (folder / "Procfile").write_text(DUMMIES)
    log, mark = folder / "log", uuid4().hex
    environment = os.environ | {"PYTHONPATH": str(folder), "AW_PORT": str(api_port), "MARK_OF_TEST": mark}
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig=TERM", sys.executable, "-c", SUPERVISE],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    found = Supervised(process, log, mark)
    try:
        eventually(lambda: process.poll() is not None or _is_up(found))
        yield found
    finally:
        process.kill()
        process.wait()
        for pid in found.pids():
            with suppress(ProcessLookupError):  # it may end by itself in between
                os.kill(pid, signal.SIGKILL)


def _is_up(found: Supervised) -> bool:
    return bool(len(_web_pids(found)) == 2 and found.says("working") and found.says("is ready"))


def _web_pids(found: Supervised) -> dict[str, list[int]]:
    pids: dict[str, list[int]] = {}
    for line in found.says(r"^web\.\d +\| I am \d+$"):
        name, *_, pid = line.split()
        pids.setdefault(name, []).append(int(pid))
    return pids


def test_what_is_killed_is_announced_and_started_again(supervised: Supervised, api_port: int) -> None:
    assert supervised.says(rf"API +http://127\.0\.0\.1:{api_port}\b")
    first = _web_pids(supervised)
    assert first.keys() == {"web.1", "web.2"}
    os.kill(first["web.1"][0], signal.SIGKILL)
    eventually(lambda: len(_web_pids(supervised)["web.1"]) == 2)
    assert supervised.says(r"exited: web\.1 .*SIGKILL.*not expected")
    again = _web_pids(supervised)
    assert again["web.1"][1] in supervised.pids()
    assert again["web.2"] == first["web.2"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_of_what_is_stopped(supervised: Supervised, number: signal.Signals) -> None:
    assert len(supervised.pids()) > 4
    supervised.process.send_signal(number)
    assert supervised.process.wait(30) == 0
    eventually(lambda: not supervised.pids())


def test_processes_do_not_outlive_a_killed_supervisor(supervised: Supervised) -> None:
    named = {pid for pids in _web_pids(supervised).values() for pid in pids}
    assert len(named) == 2
    supervised.process.kill()
    eventually(lambda: named.isdisjoint(supervised.pids()))
