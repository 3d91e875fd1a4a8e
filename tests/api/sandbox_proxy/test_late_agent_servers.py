"""Agent servers that accept a websocket late, as one does that was just resumed."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websockets

from api.sandbox_proxy import websocket
from shared.agent_server.limits import CONNECT_SECONDS
from shared.db.database import Database
from tests.api.sandbox_proxy.doubles import key_of
from tests.api.sandbox_proxy.test_websocket import close_of, socket
from tests.factories import ApiUser, make_sandbox

# An agent server that was just resumed, on a busy machine, may need as long.
MIN_HANDSHAKE_SECONDS = 20.0


def greet(connection: ServerConnection) -> None:
    with suppress(ConnectionClosed):
        connection.recv(timeout=20)
        connection.send("late")


@contextmanager
def opened(
    api: httpx.Client, database: Database, user: ApiUser, may_accept: threading.Event
) -> Iterator[ClientConnection]:
    """A client's websocket to a sandbox whose agent server accepts it only after the event."""

    def accept_late(_connection: ServerConnection, _request: Any) -> None:
        may_accept.wait(60)

    with serve_websockets(greet, "127.0.0.1", 0, process_request=accept_late) as server, ExitStack() as stack:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        # The last callback is called first.
        for end in (lambda: thread.join(20), server.shutdown, may_accept.set):
            stack.callback(end)
        url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        sandbox = make_sandbox(database, user, exposed_urls=[{"name": "AGENT_SERVER", "url": url, "port": 8000}])
        yield stack.enter_context(socket(api, sandbox, **key_of(sandbox)))


def test_websocket_waits_longer_for_its_acceptance_than_for_a_connection(
    api: httpx.Client, database: Database, user: ApiUser
) -> None:
    assert websocket.HANDSHAKE_SECONDS >= MIN_HANDSHAKE_SECONDS > CONNECT_SECONDS
    may_accept = threading.Event()
    with opened(api, database, user, may_accept) as connection:
        with pytest.raises(TimeoutError):
            connection.recv(timeout=0.2)
        may_accept.set()
        assert connection.recv(timeout=20) == "late"


def test_websocket_that_is_never_accepted_is_closed(
    api: httpx.Client, database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "HANDSHAKE_SECONDS", 0.1)
    with opened(api, database, user, threading.Event()) as connection:
        assert close_of(connection)[0] == 1014
