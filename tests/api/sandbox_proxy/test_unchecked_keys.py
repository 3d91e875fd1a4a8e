"""Websockets while their keys are being checked: long messages wait, and nothing of them is kept in memory."""

import asyncio
import json
import select
import socket
import threading
from typing import Any

import httpx
import pytest
from websockets.frames import Frame, Opcode

from api.sandbox_proxy.access import AccessCheck
from shared.models import Sandbox
from tests.api.sandbox_proxy.doubles import key_of
from tests.api.sandbox_proxy.test_websocket import auth, close_of
from tests.api.sandbox_proxy.test_websocket import socket as websocket

# More than the buffers of both ends of a connection, and less than a message may have.
LONG = "x" * (16 * 1024 * 1024 - 1)
FRAME = Frame(Opcode.TEXT, LONG.encode()).serialize(mask=True)
WRONG = "aw_wrong"


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Checks of keys wait for this event, as they wait for a database that stalls."""
    released, find = threading.Event(), AccessCheck._find

    async def find_later(*arguments: Any) -> Any:
        while not released.is_set():  # noqa: ASYNC110 - another thread ends it
            await asyncio.sleep(0.005)
        return await find(*arguments)

    monkeypatch.setattr(AccessCheck, "_find", find_later)
    return released


def send_until_full(connection: socket.socket, data: bytes) -> int:
    """Send until the other end has not read for a moment, and all buffers are full; return the number of sent bytes."""
    sent = 0
    while sent < len(data) and select.select([], [connection], [], 0.3)[1]:
        sent += connection.send(data[sent:], socket.MSG_DONTWAIT)
    return sent


@pytest.mark.parametrize("in_frame", [False, True], ids=("request", "frame"))
def test_long_message_before_the_key_check_is_not_read(
    api: httpx.Client, running: Sandbox, checked: threading.Event, *, in_frame: bool
) -> None:
    with websocket(api, running, **({} if in_frame else {"X-Session-API-Key": WRONG})) as connection:
        if in_frame:
            connection.send(json.dumps({"type": "auth", "session_api_key": WRONG}))
        assert send_until_full(connection.socket, FRAME) < len(FRAME)
        checked.set()
        assert close_of(connection)[0] == 4001


@pytest.mark.parametrize("in_frame", [False, True], ids=("request", "frame"))
def test_owner_s_long_message_arrives_after_the_check(
    api: httpx.Client, running: Sandbox, checked: threading.Event, *, in_frame: bool
) -> None:
    with websocket(api, running, **({} if in_frame else key_of(running))) as connection:
        if in_frame:
            connection.send(auth(running))
        sent = send_until_full(connection.socket, FRAME)
        checked.set()
        connection.socket.sendall(FRAME[sent:])
        assert connection.recv(timeout=20) == "/sockets/events/1?resend_mode=all"
        assert connection.recv(timeout=60) == LONG


@pytest.mark.parametrize("in_frame", [False, True], ids=("request", "frame"))
def test_short_messages_arrive_after_the_check_in_order(
    api: httpx.Client, running: Sandbox, checked: threading.Event, *, in_frame: bool
) -> None:
    with websocket(api, running, **({} if in_frame else key_of(running))) as connection:
        if in_frame:
            connection.send(auth(running))
        numbers = [str(number) for number in range(100)]
        for number in numbers:
            connection.send(number)
        checked.set()
        connection.recv(timeout=20)
        assert [connection.recv(timeout=20) for _ in numbers] == numbers
