"""Slow clients lose their connections to other clients, and in any case after a while."""

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from api.server.connections import LimitedHttp, limited_http
from api.server.limits import ConnectionLimits
from api.server.slow_connections import MAX_COMPARED, SlowConnections
from tests.api.server.test_connections import LIMITED, REQUEST, address_of, answer_of
from tests.services.asgi import serving
from tests.waiting import eventually

Address = tuple[str, int]
# More slow clients than connections that the process may have.
CLIENTS, MAX_CONNECTIONS = 300, 60
LARGE_BYTES = 32 * 1024 * 1024
HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow:"
BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"x" * 10
WEBHOOK = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, and respond, for the path /large with 32 MB. The response for /busy ends with the connection."""
    if scope["type"] != "http":
        return
    message = {"more_body": True}
    while message.get("more_body"):
        message = await receive()
    size = LARGE_BYTES if scope["path"] == "/large" else 2
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
    await send({"type": "http.response.body", "body": b"o" * size, "more_body": scope["path"] == "/busy"})
    if scope["path"] == "/busy":
        await receive()


@contextmanager
def limited(limits: ConnectionLimits | None = None, **options: Any) -> Iterator[Address]:
    """The address of a server with these limits."""
    own = LIMITED | {"http": limited_http(limits or ConnectionLimits())} | options
    with serving(application, lifespan="off", **own) as url:
        yield address_of(url)


def is_reset(connection: socket.socket) -> bool:
    try:
        connection.send(b"x")
    except OSError:
        return True
    return False


def send(address: Address, request: bytes = REQUEST) -> bytes:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(request)
        return connection.recv(65_536).partition(b"\r\n")[0]


@pytest.mark.parametrize("sent", [b"", HEAD, BODY, REQUEST])
def test_slow_clients_do_not_block_others(sent: bytes) -> None:
    with limited(limit_concurrency=MAX_CONNECTIONS) as address, ExitStack() as stack:
        slow = []
        for number in range(CLIENTS):
            slow.append(stack.enter_context(socket.create_connection(address, timeout=30)))
            slow[-1].sendall(sent)
            if number % 50 == 49:
                assert send(address) == b"HTTP/1.1 200 OK"
                assert send(address, WEBHOOK) == b"HTTP/1.1 200 OK"
        closed = answer_of(slow[0])
        # The oldest connections were closed, with a reason if a request was incomplete.
        assert closed.count(b"408 Request Timeout") == (sent in (HEAD, BODY))
        assert closed.count(b"200 OK") == (sent == REQUEST)


def test_requests_in_progress_keep_their_connections() -> None:
    with limited(limit_concurrency=2) as address:
        with socket.create_connection(address, timeout=30) as busy:
            busy.sendall(b"GET /busy HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert busy.recv(100).startswith(b"HTTP/1.1 200 OK")
            assert send(address) == b"HTTP/1.1 503 Service Unavailable"
        with socket.create_connection(address, timeout=30):
            assert send(address) == b"HTTP/1.1 200 OK"


def test_body_that_comes_too_slowly_is_a_408() -> None:
    limits = ConnectionLimits(body_bytes_per_second=100, body_period=0.1)
    with limited(limits) as address, socket.create_connection(address, timeout=30) as connection:
        connection.sendall(BODY)
        assert answer_of(connection).startswith(b"HTTP/1.1 408 Request Timeout\r\n")


def test_body_after_its_response_ends_the_connection() -> None:
    async def respond_early(scope: Any, _receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})

    own = LIMITED | {"http": limited_http(ConnectionLimits(body_period=0.1))}
    with (
        serving(respond_early, lifespan="off", **own) as url,
        socket.create_connection(address_of(url), timeout=30) as sender,
    ):
        sender.sendall(BODY + b"x" * 50_000)
        assert answer_of(sender).count(b"HTTP/1.1") == 1


def test_body_within_the_rate_is_received() -> None:
    limits = ConnectionLimits(body_bytes_per_second=1, body_period=1.0)
    with limited(limits) as address, socket.create_connection(address, timeout=30) as connection:
        connection.sendall(WEBHOOK[:-26])
        # The rest takes longer than a period, but one byte in a period is enough.
        connection.settimeout(0.1)
        for _ in range(25):
            connection.sendall(b"x")
            with pytest.raises(TimeoutError):
                connection.recv(1)
        connection.settimeout(30)
        connection.sendall(b"x")
        assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK")


def test_client_that_does_not_read_loses_its_connection() -> None:
    limits = ConnectionLimits(read_period=0.1)
    with limited(limits) as address, socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        # The server has given up when a write of the client fails.
        assert eventually(lambda: is_reset(connection))


def test_client_that_reads_slowly_gets_the_whole_response() -> None:
    with (
        limited(ConnectionLimits(read_period=2.0)) as address,
        socket.create_connection(address, timeout=30) as connection,
    ):
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        received = 0
        # Each part is read within a period, and all of them within several.
        while part := connection.recv(4 * 1024 * 1024, socket.MSG_WAITALL):
            received += len(part)
            time.sleep(0.6)
        assert received > LARGE_BYTES


def test_client_that_reads_a_response_beyond_the_keep_alive_time_gets_all_of_it() -> None:
    with limited(timeout_keep_alive=0.2) as address, socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        received = 0
        # The whole response is in the server's buffer at once, and is read over several of these times. Then the
        # connection is idle, and is closed.
        while part := connection.recv(4 * 1024 * 1024, socket.MSG_WAITALL):
            received += len(part)
            time.sleep(0.1)
        assert received > LARGE_BYTES


class Sender:
    read_rate, unread_bytes = 0.0, 0

    def __init__(self, body_rate: float) -> None:
        self.body_rate = body_rate


def test_idle_connections_are_closed_before_those_with_slow_bodies() -> None:
    slow = SlowConnections[Sender]()
    senders = [Sender(rate) for rate in (900, 100_000, 20, *[500] * MAX_COMPARED, 1)]
    for sender in senders:
        slow.add_sending(sender)
    idle = [Sender(0), Sender(0)]
    for one in (*idle, idle[0]):
        slow.add_idle(one)
    taken = [slow.take_slowest() for _ in range(4)]
    assert taken == [idle[1], idle[0], senders[2], senders[3]]
    assert slow.take_slowest() is senders[4]
    for sender in senders[:1] + senders[2:]:
        slow.remove(sender)
    assert slow.take_slowest() is None


@pytest.mark.parametrize(
    ("header", "next_request"), [(b"Connection: close", b""), (b"A: b", b""), (b"A: b", b"@@@\r\n")]
)
def test_client_that_does_not_read_the_end_of_a_response_loses_its_connection(
    header: bytes, next_request: bytes
) -> None:
    served: list[LimitedHttp] = []

    async def partly_unread(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            protocol = receive.__self__.on_response.__self__
            await send({"type": "http.response.start", "status": 200, "headers": []})
            # Send until something is buffered, which is less than what pauses the application.
            while not protocol.transport.get_write_buffer_size():
                await send({"type": "http.response.body", "body": bytes(8192), "more_body": True})
                await asyncio.sleep(0)
            await send({"type": "http.response.body", "body": b""})
            served.append(protocol)

    own = LIMITED | {"http": limited_http(ConnectionLimits(read_period=0.2)), "timeout_keep_alive": 0.2}
    with (
        serving(partly_unread, lifespan="off", **own) as url,
        socket.create_connection(address_of(url), timeout=30) as connection,
    ):
        connection.sendall(REQUEST[:-2] + header + b"\r\n\r\n")
        assert eventually(lambda: served)
        with suppress(OSError):
            connection.sendall(next_request)
        assert eventually(lambda: served[0] not in served[0].connections, deadline_seconds=10)
