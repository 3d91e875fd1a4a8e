"""One read may contain thousands of requests, headers or trailers: each costs far more than its bytes."""

import contextlib
import gc
import re
import socket
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from api.server.limits import MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED
from deploy.door import configuration
from tests.api.server.test_connections import LIMITED, REQUEST, address_of, answer_of
from tests.services.asgi import serving
from tests.waiting import eventually

Address = tuple[str, int]
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
POST = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n"
UPGRADE = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
HANDSHAKE = UPGRADE + b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
READ_BYTES = 250_000


class Marker:
    """An object in the scope of a request; a weak reference to it shows when the scope is freed."""


markers: list[weakref.ref[Marker]] = []


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Read the body, and respond with the number of headers."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.accept"})
    if scope["type"] != "http":
        return
    scope["marker"] = Marker()
    markers.append(weakref.ref(scope["marker"]))
    message = {"more_body": True}
    while message.get("more_body"):
        message = await receive()
    number = b"%03d" % len(scope["headers"])
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"3")]})
    await send({"type": "http.response.body", "body": number})


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    with (
        serving(application, lifespan="off", timeout_keep_alive=600, **LIMITED) as url,
        socket.create_connection(address_of(url), timeout=30) as connected,
    ):
        yield connected


def request(*headers: bytes) -> bytes:
    return b"GET / HTTP/1.1\r\n" + b"".join(header + b"\r\n" for header in headers) + b"\r\n"


def last_response(connection: socket.socket, sent: bytes) -> bytes:
    """Send this and a last request, which closes the connection; return all that is received."""
    connection.sendall(sent + request(b"Connection: close"))
    return answer_of(connection)


def test_pipelined_requests_get_responses(connection: socket.socket) -> None:
    response = last_response(connection, POST + b"{}" + REQUEST * (MAX_PIPELINED - 1))
    assert response.count(b"HTTP/1.1 200 OK") == MAX_PIPELINED + 1


def test_too_many_pipelined_requests_end_the_connection_after_the_responses(connection: socket.socket) -> None:
    connection.sendall(POST + b"{}" + REQUEST * (MAX_PIPELINED + 40))
    response = answer_of(connection)
    assert response.count(b"HTTP/1.1") == response.count(b"HTTP/1.1 200 OK") == MAX_PIPELINED + 1
    # The client learns which response is the last one.
    assert response.count(b"connection: close") == 1


@pytest.mark.parametrize("wrong", [b"@@@\r\n\r\n", request(b"Host")])
def test_response_comes_before_the_end_that_a_wrong_request_causes(connection: socket.socket, wrong: bytes) -> None:
    connection.sendall(REQUEST + wrong)
    response = answer_of(connection)
    assert response.startswith(b"HTTP/1.1 200 OK")
    assert (response.count(b"HTTP/1.1"), response.count(b"connection: close")) == (1, 1)


def test_websocket_behind_a_request_without_a_response_is_a_request(connection: socket.socket) -> None:
    connection.sendall(REQUEST + HANDSHAKE)
    received = b""
    while received.count(b"\r\n\r\n") < 2:
        received += connection.recv(65_536)
    assert received.count(b"HTTP/1.1 200 OK") == 2
    connection.sendall(HANDSHAKE)
    while b" 101 " not in received:
        received += connection.recv(65_536)


def test_number_of_headers_is_limited(connection: socket.socket) -> None:
    response = last_response(connection, request(*[b"a:"] * MAX_HEADERS))
    assert response.count(b"HTTP/1.1 200 OK") == 2
    assert b"%03d" % MAX_HEADERS in response


@pytest.mark.parametrize(
    "head",
    [
        request(*[b"a:"] * (MAX_HEADERS + 1)),
        request(*[b"a:"] * (READ_BYTES // 4)),
        request(b"a: " + b"x" * MAX_HEAD_BYTES),
        b"GET /" + b"x" * MAX_HEAD_BYTES + b" HTTP/1.1\r\n\r\n",
        b"GET /" + b"x" * MAX_HEAD_BYTES,
        b"CONNECT a.example:80 HTTP/1.1\r\n\r\n",
        b"GET http:///a HTTP/1.1\r\n\r\n",
    ],
    ids=["one too many", "many", "large", "long URL", "unfinished URL", "connect", "URL"],
)
def test_head_is_rejected_in_one_read(connection: socket.socket, head: bytes) -> None:
    connection.sendall(head)
    assert connection.recv(65_536).startswith(b"HTTP/1.1 400 Bad Request")


def test_door_accepts_a_request_with_the_max_of_headers() -> None:
    door = re.search(r"tune\.http\.maxhdr (\d+)", configuration.TEXT.template)
    assert door is not None
    # HAProxy counts the request line, and the proxy adds some headers.
    assert int(door[1]) >= MAX_HEADERS + 20


def test_trailers_are_no_headers(connection: socket.socket) -> None:
    connection.sendall(CHUNKED + b"1\r\nx\r\n")
    trailers = b"".join(b"X-%d: a\r\n" % number for number in range(1000))
    assert last_response(connection, b"0\r\n" + trailers + b"\r\n").count(b"002") == 1


@pytest.mark.parametrize("start", [b"0\r\nX: ", b"0\r\nX", b"1;x=", b"0\r\nX: a\r\n"])
def test_trailers_and_chunk_extensions_are_limited(connection: socket.socket, start: bytes) -> None:
    connection.sendall(CHUNKED + b"1\r\nx\r\n")
    connection.sendall(start)
    with pytest.raises(OSError, match=r"reset|pipe"):
        connection.sendall(b"x:" * 25_000_000)


def test_idle_connection_keeps_nothing_of_its_request(connection: socket.socket) -> None:
    connection.sendall(request(b"a: " + b"x" * 10_000))
    assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK")
    assert eventually(lambda: gc.collect() >= 0 and markers[-1]() is None, deadline_seconds=10)


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_upgrade_with_a_body_is_rejected(connection: socket.socket, protocol: bytes) -> None:
    upgrade = HANDSHAKE.replace(b"GET", b"POST").replace(b"websocket", protocol)
    connection.sendall(upgrade.replace(b"\r\n\r\n", b"\r\nContent-Length: %d\r\n\r\n" % len(REQUEST)))
    received = connection.recv(65_536)
    # Otherwise, the body would be taken for the next request.
    with contextlib.suppress(OSError):
        connection.sendall(REQUEST)
        received += answer_of(connection)
    assert received.startswith(b"HTTP/1.1 400")
    assert received.count(b"HTTP/1.1") == 1


def test_other_upgrade_without_a_body_is_a_request(connection: socket.socket) -> None:
    upgrade = HANDSHAKE.replace(b"websocket", b"h2c").replace(b"\r\n\r\n", b"\r\nContent-Length: 0\r\n\r\n")
    connection.sendall(upgrade)
    assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK")
    assert last_response(connection, REQUEST).count(b"HTTP/1.1 200 OK") == 2
