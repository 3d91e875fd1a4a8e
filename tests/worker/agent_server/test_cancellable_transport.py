"""Waits for an answer that are given up: the look that is taken meanwhile says that nobody wants it any more."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from tests.services.hostile_server import Mode, dripping, dripping_head, hostile, never_answering
from tests.waiting import eventually
from worker.agent_server import cancellable_transport
from worker.agent_server.exchange import open_client

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Unwanted(Exception):
    """What a look may say."""


class Silent:
    """A server of one request, that answers when it is told to."""

    def __init__(self, listener: socket.socket) -> None:
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self.may_answer = threading.Event()
        self._listener = listener

    def serve(self) -> bool:
        """Whether the client was there still when it was answered."""
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
    monkeypatch.setattr(cancellable_transport, "LOOK_SECONDS", 0.02)


def test_a_look_ends_the_wait_and_hangs_up() -> None:
    looks = []

    def look() -> None:
        looks.append(time.monotonic())
        if len(looks) == 3:
            raise Unwanted

    with silent() as server, ThreadPoolExecutor(1) as pool, open_client() as client:
        served = pool.submit(server.serve)
        with pytest.raises(Unwanted), cancellable_transport.looking(look):
            client.get(server.url, timeout=60)
        assert len(looks) == 3
        server.may_answer.set()
        served.result(10)  # it had no client any more, or one that had hung up


def test_an_answer_that_comes_after_looks_is_whole() -> None:
    looks = threading.Semaphore(0)
    with silent() as server, ThreadPoolExecutor(2) as pool, open_client() as client:
        pool.submit(server.serve)

        def ask() -> httpx.Response:
            with cancellable_transport.looking(looks.release):
                return client.get(server.url, timeout=60)

        asked = pool.submit(ask)
        for _ in range(3):
            assert looks.acquire(timeout=10)
        server.may_answer.set()
        assert asked.result(10).text == "ok"


def test_the_limit_of_a_request_holds_whoever_looks() -> None:
    looks: list[None] = []
    with silent() as server, ThreadPoolExecutor(1) as pool, open_client() as client:
        pool.submit(server.serve)
        with pytest.raises(httpx.ReadTimeout), cancellable_transport.looking(lambda: looks.append(None)):
            client.get(server.url, timeout=0.2)
        server.may_answer.set()
    assert looks


def test_a_look_is_taken_however_much_arrives() -> None:
    """A server that sends a byte now and then keeps every single read short."""

    def look() -> None:
        raise Unwanted

    with (
        hostile(dripping) as server,
        open_client() as client,
        pytest.raises(Unwanted),
        cancellable_transport.looking(look),
    ):
        client.get(server.url, timeout=60)


@pytest.mark.parametrize("mode", [dripping, dripping_head, never_answering])
def test_the_timeout_of_a_block_is_for_all_that_is_asked_in_it(mode: Mode) -> None:
    with (
        hostile(mode) as server,
        open_client() as client,
        cancellable_transport.timeout(60),
        cancellable_transport.timeout(0.3),
    ):
        for _ in range(2):
            began = time.monotonic()
            with pytest.raises(httpx.TimeoutException), cancellable_transport.timeout(60):
                client.get(server.url, timeout=60)
            assert time.monotonic() - began < 20


def test_the_timeout_is_for_what_is_sent_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, open_client() as client:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"  # whose kernel takes the connection, and some bytes
        with pytest.raises(httpx.WriteTimeout), cancellable_transport.timeout(0.3):
            client.post(url, content=b"x" * 50_000_000, timeout=60)


def test_nobody_looks_for_another_thread_or_afterwards() -> None:
    looks: list[None] = []
    with silent() as server, ThreadPoolExecutor(2) as pool, open_client() as client:
        with cancellable_transport.looking(lambda: looks.append(None)):
            served = pool.submit(server.serve)
            asked = pool.submit(client.get, server.url, timeout=0.2)
            eventually(asked.done)
        assert isinstance(asked.exception(), httpx.ReadTimeout)
        server.may_answer.set()
        served.result(10)
        with ThreadPoolExecutor(1) as again:
            again.submit(server.serve)
            server.may_answer.set()
            assert client.get(server.url, timeout=60).text == "ok"
            client.close()  # the server waits for that
    assert looks == []
