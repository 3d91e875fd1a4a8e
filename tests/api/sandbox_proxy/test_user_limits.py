"""Limits of websockets."""

import json
import threading
from contextlib import suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection

from shared.db.database import Database
from shared.models import Sandbox
from tests.api.sandbox_proxy.doubles import Serve, key_of
from tests.api.sandbox_proxy.test_websocket import EVENTS, close_of, socket
from tests.api.sandbox_proxy.test_websocket_bytes import MESSAGE, agent_server
from tests.factories import ApiUser, session_key_of


def test_websocket_over_the_limit_is_closed(serve: Serve, running: Sandbox) -> None:
    auth = json.dumps({"type": "auth", "session_api_key": session_key_of(running)})
    with serve(user_websockets=1) as api, socket(api, running, EVENTS) as first:
        first.send(auth)
        first.recv(timeout=20)
        with socket(api, running, EVENTS) as second:
            second.send(auth)
            with pytest.raises(ConnectionClosed):
                second.recv(timeout=20)
            assert second.close_code == 1013


def test_websocket_without_a_key_over_the_limit_is_closed(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, running: Sandbox
) -> None:
    monkeypatch.setattr("api.sandbox_proxy.websocket.MAX_AWAITING_KEY", 1)
    api: httpx.Client = request.getfixturevalue("api")
    key = session_key_of(running)
    with socket(api, running, EVENTS) as idle:
        with socket(api, running, EVENTS) as second:
            with pytest.raises(ConnectionClosed):
                second.recv(timeout=20)
            assert second.close_code == 1013
        with socket(api, running, f"{EVENTS}&session_api_key={key}") as with_key:
            assert with_key.recv(timeout=20)
        idle.send(json.dumps({"type": "auth", "session_api_key": key}))
        assert idle.recv(timeout=20)
        with socket(api, running, EVENTS) as third:
            third.send(json.dumps({"type": "auth", "session_api_key": key}))
            assert third.recv(timeout=20)


def test_websocket_whose_sandbox_reads_nothing_is_closed(
    api: httpx.Client, database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would notice that its client leaves, and it would count for its user for ever."""
    monkeypatch.setattr("api.sandbox_proxy.server_connection.WRITE_SECONDS", 0.2)
    monkeypatch.setattr("api.sandbox_proxy.websocket.CLOSE_SECONDS", 0.2)
    released = threading.Event()

    def hang(_connection: ServerConnection) -> None:
        released.wait(60)

    with agent_server(database, user, hang) as silent, socket(api, silent, **key_of(silent)) as client:

        def flood() -> None:
            with suppress(ConnectionClosed):
                while True:
                    client.send(MESSAGE)

        thread = threading.Thread(target=flood)
        thread.start()
        try:
            assert close_of(client)[0] == 1014
        finally:
            released.set()
            thread.join(30)
