"""Limits of connections: time and size of a request's head."""

import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from api.server.connections import LimitedHttp, limited_http
from api.server.limits import ConnectionLimits
from api.server.websockets import LimitedWebSocket, find_key_limits
from tests.services.asgi import serving

LIMITED = {"http": LimitedHttp, "ws": LimitedWebSocket, "ws_per_message_deflate": False}
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def application(scope: Any, receive: Any, send: Any) -> None:
    """Respond to each request with a 200, and to each websocket message with its length. Every key is right."""
    if scope["type"] == "websocket":
        await receive()
        limits = find_key_limits(scope)
        if scope["query_string"]:
            limits.lift()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            limits.lift()
            await send({"type": "websocket.send", "text": str(len(message["text"]))})
    elif scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    with serving(application, lifespan="off", **LIMITED) as url:
        yield address_of(url)


def address_of(url: str) -> tuple[str, int]:
    return str(urlsplit(url).hostname), int(urlsplit(url).port or 0)


def answer_of(connection: socket.socket) -> bytes:
    """Return all that is received until the other side closes."""
    response = b""
    while chunk := connection.recv(65_536):
        response += chunk
    return response


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:", REQUEST + b"GET /next HTTP/1.1\r\n"])
def test_head_that_times_out_closes_the_connection(sent: bytes) -> None:
    limited = LIMITED | {"http": limited_http(ConnectionLimits(head_seconds=0.05))}
    with (
        serving(application, lifespan="off", **limited) as url,
        socket.create_connection(address_of(url), timeout=30) as connection,
    ):
        connection.sendall(sent)
        response = answer_of(connection)
    assert response.count(b"200 OK") == sent.count(b"\r\n\r\n")
    # A client that has sent a part of a request learns why its connection is closed.
    assert response.count(b"408 Request Timeout") == (1 if sent else 0)


def test_head_without_an_end_is_rejected(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        with pytest.raises(OSError, match=r"reset|pipe"):
            connection.sendall((b"X-Padding: " + b"x" * 10_000 + b"\r\n") * 5_000)


def test_request_in_pieces_gets_a_response_and_so_does_the_next(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=30) as connection:
        for _ in range(2):
            for piece in (REQUEST[:10], REQUEST[10:]):
                connection.sendall(piece)
            assert connection.recv(65_536).startswith(b"HTTP/1.1 200 OK")


def test_whitespace_around_a_header_s_value_is_no_part_of_it() -> None:
    async def echo(scope: Any, _receive: Any, send: Any) -> None:
        value = dict(scope["headers"])[b"x-own"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
        await send({"type": "http.response.body", "body": b"<%s>" % value})

    with serving(echo, lifespan="off", **LIMITED) as url, socket.create_connection(address_of(url)) as connection:
        connection.sendall(REQUEST[:-2] + b"X-Own: \t a b \t \r\n\r\n")
        assert b"<a b>" in answer_of(connection)


def test_response_to_http_1_0_is_not_chunked() -> None:
    """Its clients take chunks for a part of the body: archives were damaged."""

    async def stream(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"PK", "more_body": True})
        await send({"type": "http.response.body", "body": b"end"})

    with serving(stream, lifespan="off", **LIMITED) as url, socket.create_connection(address_of(url)) as connection:
        connection.sendall(REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"))
        head, body = answer_of(connection).split(b"\r\n\r\n", 1)
    assert (body, b"chunked" in head) == (b"PKend", False)
