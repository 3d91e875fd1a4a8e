"""A restart goes on to the next API process when the last one answers, and not before."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from deploy.service import restart
from deploy.service.errors import ServiceError

LONG = 1000.0


@pytest.fixture
def uptimes() -> list[float]:
    """What the processes behind the address answer, the last one for ever."""
    return [LONG, LONG, 0.0]


@pytest.fixture
def url(uptimes: list[float]) -> Iterator[str]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"uptime": uptimes.pop(0) if len(uptimes) > 1 else uptimes[0]}).encode())

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/server_info"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart, "PAUSE_SECONDS", 0.01)


def test_restart_waits_until_the_new_process_answers(url: str, uptimes: list[float]) -> None:
    restart._await_answer(url, "web.1", time.monotonic())
    assert uptimes == [0.0]


def test_process_that_does_not_answer_ends_the_restart(
    url: str, uptimes: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    uptimes[:] = [LONG]
    monkeypatch.setattr(restart, "READY_SECONDS", 0.3)
    with pytest.raises(ServiceError, match=r"web\.1 does not answer"):
        restart._await_answer(url, "web.1", time.monotonic())
