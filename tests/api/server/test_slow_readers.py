"""Clients that do not read their responses lose their connections to other clients."""

import asyncio
import math
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from api.server import read_deadlines
from api.server.connections import limited_http
from api.server.limits import ConnectionLimits
from api.server.read_deadlines import ReadDeadline
from api.server.slow_connections import FAST, MAX_COMPARED, SlowConnections
from tests.api.server.test_connections import LIMITED, REQUEST, address_of, answer_of
from tests.api.server.test_slow_clients import Address, is_reset, send
from tests.services.asgi import serving
from tests.waiting import eventually

MAX_CONNECTIONS = 4
PIECES, PIECE_BYTES = 512, 65_536
# Less than what pauses the application.
PART_BYTES = 32_768
LARGE = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = LARGE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
OK = b"HTTP/1.1 200 OK"


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Respond with 32 MB on the path /large, and on /part until `PART_BYTES` are unread."""
    if scope["type"] != "http":
        return
    transport = receive.__self__.transport
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/large":
        for _ in range(PIECES):
            await send({"type": "http.response.body", "body": bytes(PIECE_BYTES), "more_body": True})
    while scope["path"] == "/part" and transport.get_write_buffer_size() < PART_BYTES:
        await send({"type": "http.response.body", "body": bytes(8192), "more_body": True})
        await asyncio.sleep(0)
    await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def address() -> Iterator[Address]:
    own = LIMITED | {"http": limited_http(ConnectionLimits()), "limit_concurrency": MAX_CONNECTIONS}
    with serving(application, lifespan="off", timeout_keep_alive=600, **own) as url:
        yield address_of(url)


@contextmanager
def unread(address: Address, requests: list[bytes]) -> Iterator[socket.socket]:
    """A connection whose client sends the first request, and the others when its response has begun; it reads none."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(30)
        connection.connect(address)
        for request in requests:
            connection.sendall(request)
            assert connection.recv(1, socket.MSG_PEEK)
        yield connection


@pytest.mark.parametrize(
    "requests",
    [[LARGE], [LARGE * 8], [LARGE, REQUEST], [LAST], [LAST.replace(b"large", b"part")]],
    ids=["one", "many", "later", "last", "part"],
)
def test_clients_that_do_not_read_do_not_block_others(address: Address, requests: list[bytes]) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(unread(address, requests)) for _ in range(MAX_CONNECTIONS - 1)]
        assert eventually(lambda: send(address) == OK, deadline_seconds=20)
        assert eventually(lambda: any(map(is_reset, clients)), deadline_seconds=20)


def test_client_that_has_not_read_for_a_moment_keeps_its_connection(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_deadlines, "MOMENT_SECONDS", 600)
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS - 1):
            stack.enter_context(unread(address, [LARGE]))
        assert send(address) == b"HTTP/1.1 503 Service Unavailable"


def test_reading_client_gets_its_response_while_idle_ones_are_closed(address: Address) -> None:
    with ExitStack() as stack:
        reader = stack.enter_context(socket.create_connection(address, timeout=30))
        reader.sendall(LAST)
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(socket.create_connection(address, timeout=30))
            assert send(address) == OK
        assert len(answer_of(reader)) > PIECES * PIECE_BYTES


class Buffer(asyncio.Transport):
    size = 100

    def get_write_buffer_size(self) -> int:
        return self.size


def test_client_that_has_read_everything_is_no_longer_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read_all() -> list[float]:
        reader = Reader()
        reader.loop, reader.transport = asyncio.get_running_loop(), (buffer := Buffer())
        reader.start_read_deadline()
        rates = [reader.read_rate]
        buffer.size = 0
        rates.append(reader.read_rate)
        await asyncio.wait_for(reader.ended.wait(), 30)
        return rates

    class Reader(ReadDeadline):
        limits = ConnectionLimits(read_period=0.01)

        def __init__(self) -> None:
            self.ended = asyncio.Event()

        def cancel_read_deadline(self) -> None:
            super().cancel_read_deadline()
            self.ended.set()

    monkeypatch.setattr(read_deadlines, "MOMENT_SECONDS", 0)
    assert asyncio.run(read_all()) == [0, math.inf]


class Client:
    def __init__(self, *, body_rate: float = FAST, read_rate: float = FAST, unread_bytes: int = 0) -> None:
        self.body_rate, self.read_rate, self.unread_bytes = body_rate, read_rate, unread_bytes


def test_idle_connections_are_closed_before_the_slowest_active_ones() -> None:
    slow = SlowConnections[Client]()
    senders = [Client(body_rate=rate) for rate in (100, FAST, 3000)]
    readers = [Client(read_rate=rate) for rate in (FAST, 200, *[4000] * MAX_COMPARED, 1)]
    idle = Client()
    for one in senders:
        slow.add_sending(one)
    for one in readers:
        slow.add_unread(one)
    slow.add_idle(idle)
    # The last reader has waited shortest, and is not among those that are compared.
    assert [slow.take_slowest() for _ in range(4)] == [idle, senders[0], readers[1], senders[2]]


def test_end_of_a_request_does_not_make_its_client_a_reader() -> None:
    slow, reader, fast = SlowConnections[Client](), Client(read_rate=1), Client()
    for one in (reader, fast):
        slow.add_unread(one)
        slow.remove(one)
    assert slow.take_slowest() is reader
    slow.add_unread(reader)
    slow.remove_unread(reader)
    assert slow.take_slowest() is None
