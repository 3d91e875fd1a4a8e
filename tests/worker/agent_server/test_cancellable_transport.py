"""Cancelled waits for a response: a periodic check ends them when the response is no longer needed."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.factories import DOOR
from tests.services.hostile_server import Mode, dripping, dripping_head, hostile, never_answering
from tests.waiting import eventually
from worker.agent_server import transport
from worker.agent_server.transport import open_client

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Cancelled(Exception):
    """Error of a cancellation check."""


class Silent:
    """Server of one request that responds when `may_answer` is set."""

    def __init__(self, listener: socket.socket) -> None:
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.may_answer = threading.Event()
        self._listener = listener

    def serve(self) -> bool:
        """Serve the request, and return whether the client was still connected for the response."""
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(10)
            connection.recv(65_536)
            self.may_answer.wait(10)
            try:
                connection.sendall(ANSWER)
            except OSError:
                return False
            return connection.recv(1) == b""


@contextmanager
def silent() -> Iterator[Silent]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield Silent(listener)


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "LOOK_SECONDS", 0.02)


def test_check_ends_the_wait_and_closes_the_connection() -> None:
    times = []

    def check() -> None:
        times.append(time.monotonic())
        if len(times) == 3:
            raise Cancelled

    with silent() as server, ThreadPoolExecutor(1) as pool, open_client(DOOR) as client:
        served = pool.submit(server.serve)
        with pytest.raises(Cancelled), transport.cancellable(check):
            client.get(server.url, timeout=60)
        assert len(times) == 3
        server.may_answer.set()
        served.result(10)  # the client has disconnected before or during the response


def test_response_after_checks_is_complete() -> None:
    checks = threading.Semaphore(0)
    with silent() as server, ThreadPoolExecutor(2) as pool, open_client(DOOR) as client:
        pool.submit(server.serve)

        def send() -> httpx.Response:
            with transport.cancellable(checks.release):
                return client.get(server.url, timeout=60)

        sent = pool.submit(send)
        for _ in range(3):
            assert checks.acquire(timeout=10)
        server.may_answer.set()
        assert sent.result(10).text == "ok"


def test_timeout_of_a_request_holds_with_checks() -> None:
    checks: list[None] = []
    with silent() as server, ThreadPoolExecutor(1) as pool, open_client(DOOR) as client:
        pool.submit(server.serve)
        with pytest.raises(httpx.ReadTimeout), transport.cancellable(lambda: checks.append(None)):
            client.get(server.url, timeout=0.2)
        server.may_answer.set()
    assert checks


def test_check_runs_while_bytes_arrive() -> None:
    """Each read is short if a server sends single bytes: the check must run between reads."""

    def check() -> None:
        raise Cancelled

    with (
        hostile(dripping) as server,
        open_client(DOOR) as client,
        pytest.raises(Cancelled),
        transport.cancellable(check),
    ):
        client.get(server.url, timeout=60)


@pytest.mark.parametrize("mode", [dripping, dripping_head, never_answering])
def test_timeout_of_a_block_is_for_all_its_requests(mode: Mode) -> None:
    with (
        hostile(mode) as server,
        open_client(DOOR) as client,
        transport.timeout(60),
        transport.timeout(0.3),
    ):
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(httpx.TimeoutException), transport.timeout(60):
                client.get(server.url, timeout=60)
            assert time.monotonic() - began < 20


def test_timeout_includes_the_sent_content() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, open_client(DOOR) as client:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"  # the kernel accepts the connection and some bytes
        with pytest.raises(httpx.WriteTimeout), transport.timeout(1.5):
            client.post(url, content=b"x" * 50_000_000, timeout=60)


def test_check_ends_a_request_that_the_server_does_not_read() -> None:
    """The check also marks progress: without it, the run would lose its lease and end without an attempt counted."""
    checks: list[None] = []

    def check() -> None:
        checks.append(None)
        if len(checks) == 3:
            raise Cancelled

    with socket.create_server(("127.0.0.1", 0)) as listener, open_client(DOOR) as client:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(Cancelled), transport.cancellable(check), transport.timeout(5):
            client.post(url, content=b"x" * 50_000_000, timeout=60)


def test_check_is_not_run_for_other_threads_or_afterwards() -> None:
    checks: list[None] = []
    with silent() as server, ThreadPoolExecutor(2) as pool, open_client(DOOR) as client:
        with transport.cancellable(lambda: checks.append(None)):
            served = pool.submit(server.serve)
            sent = pool.submit(client.get, server.url, timeout=0.2)
            eventually(sent.done)
        assert isinstance(sent.exception(), httpx.ReadTimeout)
        server.may_answer.set()
        served.result(10)
        with ThreadPoolExecutor(1) as next_pool:
            next_pool.submit(server.serve)
            server.may_answer.set()
            assert client.get(server.url, timeout=60).text == "ok"
            client.close()  # the server waits for the end of the connection
    assert checks == []
