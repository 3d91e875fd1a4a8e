"""Agent servers that accept a websocket late, as one does that was just resumed."""

import threading
import time
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websockets

from shared.db.database import Database
from tests.api.sandbox_proxy.doubles import key_of
from tests.factories import Person, make_sandbox

LATE_SECONDS = 0.5


def accept_late(_connection: ServerConnection, _request: Any) -> None:
    time.sleep(LATE_SECONDS)


def greet(connection: ServerConnection) -> None:
    connection.recv(timeout=20)
    connection.send("late")


def test_websocket_waits_longer_for_its_acceptance_than_for_a_connection(
    api: httpx.Client, database: Database, user: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.sandbox_proxy.websocket.CONNECT_SECONDS", LATE_SECONDS / 5, raising=False)
    with serve_websockets(greet, "127.0.0.1", 0, process_request=accept_late) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
            sandbox = make_sandbox(database, user, exposed_urls=[{"name": "AGENT_SERVER", "url": url, "port": 8000}])
            address = f"{str(api.base_url).replace('http', 'ws', 1)}/sandbox/{sandbox.id}/sockets/events/1"
            with connect(address, additional_headers=key_of(sandbox), proxy=None) as connection:
                assert connection.recv(timeout=20) == "late"
        finally:
            server.shutdown()
            thread.join(20)
