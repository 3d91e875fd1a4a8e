"""The responses to a client of a faulty engine, and the requests that the engine gets."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest

from tests.services.directories import short_directory
from tests.services.faulty_engine import Failure, FailureMode, FaultyEngine, running_faulty_engine

BODY = b'{"whole": true}'


class UnixServer(HTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)


@dataclass
class Answering:
    """An engine that responds to every request."""

    path: Path
    gateway: str = "127.0.0.1"
    network: str = ""
    address: str = "127.0.0.1"
    requested: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"unix://{self.path}"


@contextmanager
def answering(engine: Answering) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            engine.requested.append(f"{self.command} {self.path}")
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()
            self.wfile.write(BODY)

        do_POST = do_GET  # noqa: N815 - the name that the base class looks for

        def log_message(self, *_: Any) -> None:
            pass

        def address_string(self) -> str:
            return ""

    server: Any = UnixServer(str(engine.path), Handler)  # type: ignore[arg-type]
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.fixture
def engine() -> Iterator[Answering]:
    with short_directory("answering") as directory:
        engine = Answering(directory / "docker.sock")
        with answering(engine):
            yield engine


@pytest.fixture
def faulty(engine: Answering) -> Iterator[FaultyEngine]:
    with running_faulty_engine(engine) as faulty:
        yield faulty


def send(faulty: FaultyEngine, method: str = "POST", times: int = 1, seconds: float = 10) -> list[int]:
    """Send requests on one connection; return their statuses."""
    transport = httpx.HTTPTransport(uds=faulty.host.removeprefix("unix://"))
    with httpx.Client(transport=transport, base_url="http://engine", timeout=seconds) as client:
        responses = [client.request(method, "/act", content=b"x" * 10) for _ in range(times)]
    assert all(response.content == BODY for response in responses if response.status_code == 200)
    return [response.status_code for response in responses]


def test_requests_are_forwarded_without_a_failure(faulty: FaultyEngine, engine: Answering) -> None:
    assert send(faulty, times=3) == [200, 200, 200]
    assert engine.requested == ["POST /act"] * 3


@pytest.mark.parametrize(("mode", "is_requested"), [(FailureMode.FAIL, False), (FailureMode.FAIL_AFTER, True)])
def test_failed_request_gets_a_500(
    faulty: FaultyEngine, engine: Answering, mode: FailureMode, is_requested: bool
) -> None:
    faulty.failure = Failure(mode)
    assert send(faulty, times=2) == [500, 500]
    assert engine.requested == ["POST /act"] * 2 * is_requested


@pytest.mark.parametrize(
    ("mode", "seconds", "error"),
    [
        (FailureMode.DROP, 10, httpx.RemoteProtocolError),
        (FailureMode.CUT, 10, httpx.RemoteProtocolError),
        (FailureMode.SWALLOW, 0.3, httpx.ReadTimeout),
        (FailureMode.DELAY, 0.3, httpx.ReadTimeout),
    ],
)
def test_request_is_executed_and_its_response_fails(
    faulty: FaultyEngine, engine: Answering, mode: FailureMode, seconds: float, error: type[Exception]
) -> None:
    faulty.failure = Failure(mode, seconds=1)
    with pytest.raises(error):
        send(faulty, seconds=seconds)
    assert engine.requested == ["POST /act"]
    assert faulty.injected == {mode: 1}
    faulty.failure = None
    assert send(faulty) == [200]


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 500)])
def test_only_the_selected_kind_of_request_fails(faulty: FaultyEngine, method: str, status: int) -> None:
    faulty.failure = Failure(FailureMode.FAIL, reads=False)
    assert send(faulty, method) == [status]


@pytest.mark.parametrize(("path", "status"), [(b"/act", 500), (b"/other", 200)])
def test_only_requests_with_the_selected_path_fail(faulty: FaultyEngine, path: bytes, status: int) -> None:
    faulty.failure = Failure(FailureMode.FAIL, path=path)
    assert send(faulty) == [status]


def test_selected_share_of_requests_fails(faulty: FaultyEngine) -> None:
    faulty.failure = Failure(FailureMode.FAIL, share=0.5)
    assert 10 < send(faulty, times=50).count(500) < 40


def test_no_more_than_the_selected_number_of_requests_fail(faulty: FaultyEngine) -> None:
    for _ in range(2):
        faulty.failure = Failure(FailureMode.FAIL, most=2)
        assert send(faulty, times=4) == [500, 500, 200, 200]
        assert faulty.failure is None
