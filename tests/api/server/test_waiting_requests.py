"""Requests that wait behind a running one of their connection."""

import asyncio
import socket
import threading
from typing import Any

import pytest

from api.server.connections import LimitedHttp, limited_http
from api.server.limits import ConnectionLimits
from tests.api.server.test_connections import LIMITED, REQUEST, address_of, answer_of
from tests.services.asgi import serving
from tests.waiting import eventually

LARGE = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Large: " + b"x" * 40_000 + b"\r\n\r\n"
# A body whose end never comes.
UNFINISHED = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n"
PERIOD = 0.1


def test_no_more_is_read_while_large_requests_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LimitedHttp] = []
    begin, released = LimitedHttp.connection_made, threading.Event()

    def connection_made(self: LimitedHttp, transport: asyncio.Transport) -> None:
        made.append(self)
        begin(self, transport)

    async def wait(_scope: Any, _receive: Any, send: Any) -> None:
        await asyncio.to_thread(released.wait, 60)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    monkeypatch.setattr(LimitedHttp, "connection_made", connection_made)
    with serving(wait, lifespan="off", **LIMITED) as url, socket.create_connection(address_of(url), 30) as client:
        client.sendall(REQUEST)
        [connection] = eventually(lambda: made)
        for number in range(1, 3):
            client.sendall(LARGE)
            eventually(lambda number=number: len(connection.pipeline) == number)  # type: ignore[misc]
        client.sendall(LARGE)
        assert not connection.transport.is_reading()
        released.set()
        client.shutdown(socket.SHUT_WR)
        assert answer_of(client).count(b"200 OK") >= 1


def test_body_that_waits_does_not_end_the_request_before_it() -> None:
    async def respond_late(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            await receive()
        await asyncio.sleep(5 * PERIOD)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    limited = LIMITED | {"http": limited_http(ConnectionLimits(body_period=PERIOD))}
    with (
        serving(respond_late, lifespan="off", **limited) as url,
        socket.create_connection(address_of(url), 30) as client,
    ):
        client.sendall(REQUEST + UNFINISHED)
        received = answer_of(client)
    assert received.startswith(b"HTTP/1.1 200 OK")
    assert b"408" in received
