"""A restart continues with the next process only when the previous one works."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError

from deploy.service import restart
from deploy.service.errors import ServiceError
from shared.crypto import new_secret_key
from shared.errors import Invalid
from shared.settings import Settings

LONG = 1000.0


@pytest.fixture
def uptimes() -> list[float]:
    """The responses of the processes behind the address; the last one is repeated."""
    return [LONG, LONG, 0.0]


@pytest.fixture
def url(uptimes: list[float]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"uptime": uptimes.pop(0) if len(uptimes) > 1 else uptimes[0]}).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/server_info"
        server.shutdown()
        thread.join()


class LateWorkers:
    """A supervisor of two workers, which begin to work some time after their start."""

    def __init__(self, settings: Settings) -> None:
        self.others = list[str]()
        self.stopped = list[str]()
        self.stopped_before_the_last_worked = list[str]()
        self._works = {name: settings.readiness_file(name) for name in ("worker.1", "worker.2")}
        settings.workers_dir.mkdir(parents=True)
        self._working = {*self._works}
        self._starts: list[threading.Timer] = []

    def getAllProcessInfo(self) -> list[dict[str, str]]:  # noqa: N802 - names of the interface
        found = [{"group": "worker", "name": name} for name in self._works]
        return [*found, *({"group": name.partition(".")[0], "name": name} for name in self.others)]

    def stopProcess(self, name: str, _wait: bool) -> None:  # noqa: N802
        self.stopped.append(name)
        if self._working != self._works.keys():
            self.stopped_before_the_last_worked.append(name)
        self._working.discard(name.partition(":")[2])

    def startProcess(self, name: str, _wait: bool) -> None:  # noqa: N802
        self._starts.append(threading.Timer(0.2, self._work, [name.partition(":")[2]]))
        self._starts[-1].start()

    def end(self) -> None:
        """Wait for the workers that have been started."""
        for start in self._starts:
            start.join()

    def _work(self, name: str) -> None:
        self._working.add(name)
        self._works[name].touch()


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LateWorkers]:
    monkeypatch.setenv("AW_VAR_DIR", str(tmp_path))
    (tmp_path / "secret.key").write_text(new_secret_key())
    found = LateWorkers(Settings())
    monkeypatch.setattr(restart, "_supervisor", lambda _socket: nullcontext(found))
    yield found
    found.end()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "PAUSE_SECONDS", 0.01)


def test_restart_waits_until_the_new_process_responds(url: str, uptimes: list[float]) -> None:
    restart._await_response(url, "web.1", time.monotonic())
    assert uptimes == [0.0]


def test_process_that_does_not_respond_ends_the_restart(
    url: str, uptimes: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    uptimes[:] = [LONG]
    monkeypatch.setattr(restart, "READY_SECONDS", 0.3)
    with pytest.raises(ServiceError, match=r"web\.1 does not respond"):
        restart._await_response(url, "web.1", time.monotonic())


def test_next_worker_is_stopped_once_the_previous_one_works(supervisor: LateWorkers) -> None:
    restart.main([])
    assert supervisor.stopped_before_the_last_worked == []


def test_wrong_setting_of_a_worker_stops_no_process(supervisor: LateWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_CONCURRENCY", "many")
    with pytest.raises(ValidationError, match="concurrency"):
        restart.main([])
    assert supervisor.stopped == []


@pytest.mark.parametrize("named", [[], ["door"]])
def test_malformed_secret_key_stops_no_process(
    supervisor: LateWorkers, monkeypatch: pytest.MonkeyPatch, named: list[str]
) -> None:
    supervisor.others = ["door.1"]
    monkeypatch.setenv("AW_SECRET_KEYS", "hush")
    with pytest.raises(Invalid, match="AW_SECRET_KEYS"):
        restart.main(named)
    assert supervisor.stopped == []


@pytest.mark.parametrize("name", ["dor", "worker.3"])
def test_name_of_no_process_stops_none(supervisor: LateWorkers, name: str) -> None:
    with pytest.raises(ServiceError, match=rf"no process is named {name}; .*door, .*nothing was restarted"):
        restart.main(["worker.1", name])
    assert supervisor.stopped == []


def test_process_that_does_not_run_here_may_be_named(supervisor: LateWorkers) -> None:
    restart.main(["flower", "worker.1"])
    assert supervisor.stopped == ["worker:worker.1"]


@pytest.mark.usefixtures("supervisor")
def test_worker_that_does_not_work_ends_the_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "READY_SECONDS", 0.1)
    with pytest.raises(ServiceError, match=r"worker\.1 does not work"):
        restart.main([])


@pytest.fixture
def free() -> Iterator[int]:
    """A port on which no program listens."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        yield other.getsockname()[1]


def test_changed_port_of_the_api_stops_no_process(
    supervisor: LateWorkers, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor holds the sockets, so a restarted process would listen on the former port."""
    supervisor.others = ["web.1"]
    monkeypatch.setenv("AW_PORT", str(free))
    with pytest.raises(ServiceError, match=f"does not listen on 127.0.0.1, port {free}.*nothing was restarted"):
        restart.main([])
    assert supervisor.stopped == []


def test_client_port_that_is_not_open_is_named(
    url: str, free: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The port may have been changed in the settings, which no restart applies."""
    monkeypatch.setenv("AW_PORT", str(urlsplit(url).port))
    for port, is_named in ((free, True), (0, False)):
        monkeypatch.setenv("AW_CLIENT_PORT", str(port))
        restart._require_open_sockets(Settings())
        assert (f"client port {free}" in capsys.readouterr().err) == is_named
