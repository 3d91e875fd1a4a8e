"""Websockets that count what they keep in memory, and close a client that does not read."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.sync.client import connect

from api.server.counted_websockets import CountedWebSocket, find_buffers
from api.server.limits import ConnectionLimits
from api.server.websockets import find_key_limits
from tests.services.asgi import serving
from tests.waiting import eventually

SIZE = 16 * 1024 * 1024
HEAD = (
    f"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    f"Sec-WebSocket-Key: {'a' * 22}==\r\n\r\n"
)


class Application:
    """Sends a large message, and then reads the client's."""

    def __init__(self) -> None:
        self.reported: list[int] = []
        self.drained, self.left = threading.Event(), threading.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        find_key_limits(scope).lift()
        await send({"type": "websocket.accept"})
        buffers = find_buffers(scope)
        buffers.watch(self.reported.append)
        await send({"type": "websocket.send", "bytes": b"x" * SIZE})
        await buffers.drained()
        self.drained.set()
        while (await receive())["type"] != "websocket.disconnect":
            pass
        self.left.set()


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
def url(application: Application) -> Iterator[str]:
    """A server with a short timeout for clients that read nothing."""
    hasty = type("Hasty", (CountedWebSocket,), {"limits": ConnectionLimits(read_period=0.5)})
    with serving(application, lifespan="off", ws=hasty, ws_per_message_deflate=False) as url:
        yield url


def test_client_that_does_not_read_is_closed(application: Application, url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(HEAD.encode())
        assert eventually(application.left.is_set, deadline_seconds=30)


def test_messages_count_until_the_application_has_them(application: Application, url: str) -> None:
    with connect(url.replace("http", "ws", 1), proxy=None, max_size=None) as websocket:
        assert len(websocket.recv(timeout=30)) == SIZE
        assert eventually(application.drained.is_set)
        websocket.send("x" * 4096)
        websocket.send("x" * 1_000_000)
        assert eventually(lambda: max(application.reported) >= 900_000)
        assert eventually(lambda: application.reported[-1] == 0)
    assert eventually(application.left.is_set)
