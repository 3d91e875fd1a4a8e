"""Limits of websockets: their first message, and tiny frames, each of which costs as much as a large one.

The frames are written to the socket in one piece, as no library does.
"""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.sync.client import ClientConnection, connect

from api.server import websockets
from api.server.limits import MAX_AUTH_BYTES
from api.server.websockets import MAX_AUTH_FRAMES, MAX_TINY_FRAGMENTS, LimitedWebSocket, find_key_limits
from tests.api.server.test_connections import LIMITED, address_of, application
from tests.services.asgi import serving
from tests.waiting import eventually

MASK = bytes(4)
PING, TEXT, BEGIN, NEXT, LAST = (bytes((first, 0x80)) + MASK for first in (0x89, 0x81, 0x01, 0x00, 0x80))
KEY = json.dumps({"type": "auth", "session_api_key": "k" * 1000})
MANY = 3000
HANDSHAKE = b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"


@pytest.fixture
def url() -> Iterator[str]:
    with serving(application, lifespan="off", **LIMITED) as found:
        yield found.replace("http", "ws", 1) + "/"


@contextmanager
def authenticated(url: str) -> Iterator[ClientConnection]:
    with connect(url, proxy=None, max_size=None) as websocket:
        websocket.send(KEY)
        assert websocket.recv(timeout=30) == str(len(KEY))
        yield websocket


def close_code(websocket: ClientConnection) -> int | None:
    with pytest.raises(ConnectionClosed):
        websocket.recv(timeout=30)
    return websocket.close_code


def test_first_message_has_a_size_limit_and_later_ones_do_not(url: str) -> None:
    with authenticated(url) as websocket:
        websocket.send("x" * 1_000_000)
        assert websocket.recv(timeout=30) == "1000000"
    with connect(f"{url}?key", proxy=None) as websocket:
        websocket.send("x" * 1_000_000)
        assert websocket.recv(timeout=30) == "1000000"
    with connect(url, proxy=None) as websocket:
        websocket.send("x" * (MAX_AUTH_BYTES + 1))
        assert close_code(websocket) == 1009


def test_websocket_over_the_limit_of_connections_is_a_503() -> None:
    with serving(application, lifespan="off", limit_concurrency=2, **LIMITED) as url:
        address = url.replace("http", "ws", 1)
        with connect(address, proxy=None), pytest.raises(InvalidStatus) as refused:
            connect(address, proxy=None).close()
    assert refused.value.response.status_code == 503


@pytest.mark.parametrize("frames", [BEGIN + NEXT * MAX_AUTH_FRAMES, PING * (MAX_AUTH_FRAMES + 1)])
def test_first_message_must_come_in_few_frames(url: str, frames: bytes) -> None:
    with connect(url, proxy=None) as websocket:
        websocket.socket.sendall(frames)
        assert close_code(websocket) == 1002


def test_first_message_may_come_in_some_frames(url: str) -> None:
    with connect(url, proxy=None) as websocket:
        websocket.ping()
        websocket.send(iter(["{", "}", ""]))
        assert websocket.recv(timeout=30) == "2"


def test_message_in_one_packet_with_the_first_may_be_long(url: str) -> None:
    frames = [Frame(Opcode.TEXT, text).serialize(mask=True) for text in (KEY.encode(), b"x" * 100_000, b"end")]
    with connect(url, proxy=None) as websocket:
        websocket.socket.sendall(b"".join(frames))
        assert [websocket.recv(timeout=30) for _ in frames] == [str(len(KEY)), "100000", "3"]


def test_client_s_close_ends_a_websocket_whose_key_is_wrong() -> None:
    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await receive()
            await send({"type": "websocket.close", "code": 4001})

    with serving(refuse, lifespan="off", **LIMITED) as url:
        began = time.monotonic()
        with connect(url.replace("http", "ws", 1), proxy=None) as websocket:
            websocket.send("{}")
            assert close_code(websocket) == 4001
        # Without the client's close, the server waits for 10 s.
        assert time.monotonic() - began < 9


def test_message_has_a_limited_number_of_tiny_fragments(url: str) -> None:
    with authenticated(url) as websocket:
        for _ in range(2):
            websocket.socket.sendall(BEGIN + NEXT * (MAX_TINY_FRAGMENTS - 1) + PING + LAST)
            assert websocket.recv(timeout=30) == "0"
        websocket.send(iter(["x" * 600] * 3 * MAX_TINY_FRAGMENTS))
        assert websocket.recv(timeout=30) == str(600 * 3 * MAX_TINY_FRAGMENTS)
        websocket.socket.sendall(BEGIN + NEXT * MAX_TINY_FRAGMENTS)
        assert close_code(websocket) == 1002


@pytest.fixture
def _low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websockets, "BURST_FRAMES", 100)
    monkeypatch.setattr(websockets, "FRAMES_PER_SECOND", 10_000)


@pytest.mark.usefixtures("_low_limits")
def test_tiny_messages_beyond_a_burst_are_delayed_and_none_is_lost(url: str) -> None:
    with authenticated(url) as websocket:
        began = time.monotonic()
        websocket.socket.sendall(TEXT * MANY)
        websocket.send("end")
        responses = [websocket.recv(timeout=30) for _ in range(MANY + 1)]
        assert time.monotonic() - began > 0.15
    assert responses == ["0"] * MANY + ["3"]


@pytest.mark.usefixtures("_low_limits")
def test_pings_beyond_a_burst_are_delayed(url: str) -> None:
    with authenticated(url) as websocket:
        began = time.monotonic()
        for _ in range(3):
            # Each of these pieces is parsed separately.
            websocket.socket.sendall(PING * 600)
            websocket.send("")
            assert websocket.recv(timeout=30) == "0"
        websocket.socket.sendall(PING * 600)
        websocket.close()
        assert time.monotonic() - began > 0.1
        assert websocket.close_code == 1000


@pytest.mark.usefixtures("_low_limits")
def test_messages_that_the_application_does_not_read_are_not_parsed() -> None:
    waiting: list[int] = []

    async def busy(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            await receive()
            find_key_limits(scope).lift()
            await pass_a_check(receive.__self__)
            waiting.append(receive.__self__.queue.qsize())
            await send({"type": "websocket.close"})

    with (
        serving(busy, lifespan="off", **LIMITED) as url,
        connect(url.replace("http", "ws", 1), proxy=None) as websocket,
    ):
        websocket.send("{}")
        websocket.socket.sendall(TEXT * MANY)
        assert close_code(websocket) == 1000
    assert 0 < waiting[0] < 1000


async def pass_a_check(websocket: Any) -> None:
    """Wait until the received messages are delayed, and until the application has been checked once more."""
    first = await asyncio.to_thread(eventually, lambda: websocket._timer)
    await asyncio.to_thread(eventually, lambda: websocket._timer is not first)


def test_handshake_that_the_library_rejects_gets_a_response() -> None:
    with serving(application, lifespan="off", **LIMITED) as url:
        for rejected in (HANDSHAKE + b"X-A: b\r\n" * 150, HANDSHAKE.replace(b"GET", b"POST")):
            with socket.create_connection(address_of(url), timeout=30) as connection:
                connection.sendall(rejected + b"\r\n")
                assert connection.recv(65_536).startswith(b"HTTP/1.1 4")
                assert connection.recv(65_536) == b""


def test_client_that_ignores_pings_loses_its_connection() -> None:
    ended: list[str] = []

    async def talkative(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            try:
                for _ in range(64):
                    await send({"type": "websocket.send", "bytes": bytes(1_000_000)})
            finally:
                ended.append("websocket")

    slow = LIMITED | {"ws_ping_interval": 0.05, "ws_ping_timeout": 0.05}
    key = b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    with (
        serving(talkative, lifespan="off", **slow) as url,
        socket.create_connection(address_of(url), timeout=30) as connection,
    ):
        connection.sendall(HANDSHAKE + key)
        assert eventually(lambda: ended == ["websocket"])


def test_ping_whose_answer_is_not_read_yet_closes_no_websocket() -> None:
    """As while a sandbox is woken: the application reads no further message until it runs."""
    timed_out = threading.Event()

    class Observed(LimitedWebSocket):
        def keepalive_timeout(self) -> None:
            super().keepalive_timeout()
            timed_out.set()

    async def wake_and_echo(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        find_key_limits(scope).lift()
        await send({"type": "websocket.accept"})
        await asyncio.to_thread(timed_out.wait, 30)
        await send({"type": "websocket.send", "text": (await receive())["text"]})
        await receive()

    own = LIMITED | {"ws": Observed, "ws_ping_interval": 0.05, "ws_ping_timeout": 0.2}
    with serving(wake_and_echo, lifespan="off", **own) as url, connect(url.replace("http", "ws", 1)) as websocket:
        websocket.send("said before it woke")
        assert websocket.recv(timeout=30) == "said before it woke"
