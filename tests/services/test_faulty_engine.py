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
from tests.services.faulty_engine import FaultyEngine, Trouble, Way, running_faulty_engine

BODY = b'{"whole": true}'


class UnixServer(HTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)


@dataclass
class Answering:
    """An engine that does whatever it is asked."""

    path: Path
    gateway: str = "127.0.0.1"
    network: str = ""
    address: str = "127.0.0.1"
    asked: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"unix://{self.path}"


@contextmanager
def answering(engine: Answering) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            engine.asked.append(f"{self.command} {self.path}")
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


def ask(faulty: FaultyEngine, method: str = "POST", times: int = 1, seconds: float = 0.3) -> list[int]:
    """The statuses of so many requests on one connection."""
    transport = httpx.HTTPTransport(uds=faulty.host.removeprefix("unix://"))
    with httpx.Client(transport=transport, base_url="http://engine", timeout=seconds) as client:
        answers = [client.request(method, "/act", content=b"x" * 10) for _ in range(times)]
    assert all(answer.content == BODY for answer in answers if answer.status_code == 200)
    return [answer.status_code for answer in answers]


def test_well_engine_is_passed_through(faulty: FaultyEngine, engine: Answering) -> None:
    assert ask(faulty, times=3) == [200, 200, 200]
    assert engine.asked == ["POST /act"] * 3


@pytest.mark.parametrize(("way", "is_asked"), [(Way.FAIL, False), (Way.FAIL_AFTER, True)])
def test_failure_is_an_answer(faulty: FaultyEngine, engine: Answering, way: Way, is_asked: bool) -> None:
    faulty.trouble = Trouble(way)
    assert ask(faulty, times=2) == [500, 500]
    assert engine.asked == ["POST /act"] * 2 * is_asked


@pytest.mark.parametrize(
    ("way", "error"),
    [
        (Way.DROP, httpx.RemoteProtocolError),
        (Way.CUT, httpx.RemoteProtocolError),
        (Way.SWALLOW, httpx.ReadTimeout),
        (Way.DELAY, httpx.ReadTimeout),
    ],
)
def test_act_is_done_and_its_answer_spoiled(
    faulty: FaultyEngine, engine: Answering, way: Way, error: type[Exception]
) -> None:
    faulty.trouble = Trouble(way, seconds=1)
    with pytest.raises(error):
        ask(faulty)
    assert engine.asked == ["POST /act"]
    assert faulty.spoiled == {way: 1}
    faulty.trouble = None
    assert ask(faulty, seconds=10) == [200]


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 500)])
def test_only_what_is_named_is_spoiled(faulty: FaultyEngine, method: str, status: int) -> None:
    faulty.trouble = Trouble(Way.FAIL, reads=False)
    assert ask(faulty, method) == [status]


@pytest.mark.parametrize(("path", "status"), [(b"/act", 500), (b"/other", 200)])
def test_only_requests_of_that_path_are_spoiled(faulty: FaultyEngine, path: bytes, status: int) -> None:
    faulty.trouble = Trouble(Way.FAIL, path=path)
    assert ask(faulty) == [status]


def test_share_of_the_answers_is_spoiled(faulty: FaultyEngine) -> None:
    faulty.trouble = Trouble(Way.FAIL, share=0.5)
    assert 10 < ask(faulty, times=50).count(500) < 40


def test_so_many_answers_are_spoiled_and_no_more(faulty: FaultyEngine) -> None:
    for _ in range(2):
        faulty.trouble = Trouble(Way.FAIL, most=2)
        assert ask(faulty, times=4) == [500, 500, 200, 200]
        assert faulty.trouble is None
