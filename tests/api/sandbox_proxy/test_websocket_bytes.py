"""Bytes that websockets keep in memory while one side does not read: all websockets of a user share one limit."""

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websockets
from websockets.utils import accept_key

from api.limits.buffers import BufferLimit
from api.sandbox_proxy import event_replay
from shared.db.database import Database
from shared.models import Sandbox
from tests.api.sandbox_proxy.doubles import Agent, Serve, key_of
from tests.api.sandbox_proxy.test_websocket import close_of
from tests.api.sandbox_proxy.test_websocket import socket as websocket
from tests.factories import ApiUser, make_sandbox, session_key_of
from tests.waiting import eventually

MEGABYTE = 1024 * 1024
LIMIT, MESSAGE = 16 * MEGABYTE, "x" * 4 * MEGABYTE
WEBSOCKETS = 4
# Including the bytes that the kernel buffers for each connection.
MAX_TAKEN = 100 * MEGABYTE
PING = bytes((0x89, 125)) + b"x" * 125

Exchange = Callable[[ServerConnection], None]


@pytest.fixture(autouse=True)
def _limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.limits.process.WEBSOCKET_BYTES", LIMIT)


@contextmanager
def agent_server(database: Database, owner: ApiUser, exchange: Exchange) -> Iterator[Sandbox]:
    """A sandbox whose agent server runs an exchange after the auth frame."""

    def handle(connection: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            connection.recv(timeout=20)
            exchange(connection)

    with serve_websockets(handle, "127.0.0.1", 0, max_size=None, max_queue=1, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
            yield make_sandbox(database, owner, exposed_urls=[{"name": "AGENT_SERVER", "url": url, "port": 8000}])
        finally:
            server.shutdown()
            thread.join(20)


def open_unread(stack: ExitStack, api: httpx.Client, sandbox: Sandbox, path: str = "a") -> socket.socket:
    """Open a websocket whose client reads nothing."""
    client = stack.enter_context(socket.socket())
    # The kernel would keep some megabytes for a client that does not read.
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((api.base_url.host, api.base_url.port or 80))
    head = ["Host: a", "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13"]
    head += [f"Sec-WebSocket-Key: {'a' * 22}==", f"X-Session-API-Key: {session_key_of(sandbox)}"]
    client.sendall("\r\n".join((f"GET /sandbox/{sandbox.id}/{path} HTTP/1.1", *head, "", "")).encode())
    return client


def echo(connection: ServerConnection) -> None:
    for message in connection:
        connection.send(message)


def test_clients_that_do_not_read_keep_a_limited_number_of_bytes(
    serve: Serve, database: Database, user: ApiUser, other_user: ApiUser
) -> None:
    taken, ended = [], []

    def flood(connection: ServerConnection) -> None:
        try:
            while True:
                connection.send(MESSAGE)
                taken.append(len(MESSAGE))
        finally:
            ended.append(connection)

    with serve() as api, agent_server(database, user, flood) as sandbox, ExitStack() as clients:
        for _ in range(WEBSOCKETS):
            open_unread(clients, api, sandbox)
        assert eventually(lambda: len(ended) >= WEBSOCKETS - 1, deadline_seconds=60)
        assert sum(taken) < MAX_TAKEN
        with agent_server(database, other_user, echo) as theirs, websocket(api, theirs, **key_of(theirs)) as other:
            other.send(MESSAGE)
            assert other.recv(timeout=20) == MESSAGE


def test_sandbox_that_does_not_read_keeps_a_limited_number_of_bytes(
    serve: Serve, database: Database, user: ApiUser
) -> None:
    released, ended = threading.Event(), []

    def send(client: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            while True:
                client.send(MESSAGE)
        ended.append(client)

    def hang(_connection: ServerConnection) -> None:
        released.wait(60)

    with serve() as api, ExitStack() as stack:
        sandbox = stack.enter_context(agent_server(database, user, hang))
        stack.callback(released.set)
        clients = [stack.enter_context(websocket(api, sandbox, **key_of(sandbox))) for _ in range(WEBSOCKETS)]
        threads = [threading.Thread(target=send, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        try:
            assert eventually(lambda: len(ended) >= WEBSOCKETS - 1, deadline_seconds=60)
        finally:
            for client in clients:
                with suppress(OSError):
                    client.socket.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join(20)


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[BufferLimit]:
    """The limits of the API processes that are started."""
    limits: list[BufferLimit] = []

    class Recorded(BufferLimit):
        def __init__(self, of_user: int) -> None:
            super().__init__(of_user)
            limits.append(self)

    monkeypatch.setattr("api.limits.process.BufferLimit", Recorded)
    return limits


def test_messages_that_a_closed_websocket_kept_do_not_count_for_later_ones(
    serve: Serve, database: Database, user: ApiUser, limits: list[BufferLimit]
) -> None:
    """They did once the client's close arrived, because what was received was counted again."""
    crowded = threading.Event()

    def disconnect(connection: ServerConnection) -> None:
        crowded.wait(60)
        # A reset. After a mere shutdown, the proxy could not send to a full buffer, and waited for its own timeout.
        connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.socket.shutdown(socket.SHUT_RDWR)
        connection.socket.close()

    def send(client: ClientConnection) -> None:
        with suppress(ConnectionClosed):
            for _ in range(10):  # an endless loop would keep the client's lock from the thread that answers the close
                client.send(MESSAGE)

    with serve() as api, agent_server(database, user, disconnect) as leaving:
        for _ in range(WEBSOCKETS):
            crowded.clear()
            with websocket(api, leaving, **key_of(leaving)) as client:
                thread = threading.Thread(target=send, args=(client,))
                thread.start()
                assert eventually(lambda: limits[0].held.total() > 1.5 * len(MESSAGE))
                crowded.set()
                thread.join(60)
        with agent_server(database, user, echo) as own, websocket(api, own, **key_of(own)) as later:
            later.send(MESSAGE)
            assert later.recv(timeout=20) == MESSAGE


def test_page_of_replayed_events_counts_while_the_client_does_not_read_it(
    serve: Serve, agent: Agent, running: Sandbox, monkeypatch: pytest.MonkeyPatch, limits: list[BufferLimit]
) -> None:
    monkeypatch.setattr(event_replay, "STATE_TIMEOUT_SECONDS", 0.1)
    events = [{"id": str(number), "text": "x" * 100_000} for number in range(70)]
    monkeypatch.setattr(agent.server, "_page", lambda _query: {"items": events, "next_page_id": None})
    agent.server.steps = True
    with serve() as api, ExitStack() as clients:
        client = open_unread(clients, api, running, f"sockets/events/{'0' * 32}?resend_mode=all")
        assert eventually(lambda: limits[0].held.total() > 7_000_000, deadline_seconds=30)
        client.close()
        assert eventually(lambda: not limits[0].held.total())
        agent.server.steps = False


def flood_with_pings(listener: socket.socket) -> None:
    """Open one websocket, and send pings until it is closed, without reading the answers."""
    connection, _ = listener.accept()
    with connection, suppress(OSError):
        key = re.search("Sec-WebSocket-Key: (.*)\r\n", connection.recv(65_536).decode())
        accept = accept_key(key[1] if key else "")
        head = f"HTTP/1.1 101 A\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        connection.sendall(head.encode())
        while True:
            connection.sendall(PING * 1000)


def test_sandbox_that_pings_and_does_not_read_is_closed(serve: Serve, database: Database, user: ApiUser) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, serve() as api, ExitStack() as clients:
        thread = threading.Thread(target=flood_with_pings, args=(listener,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        urls = [{"name": "AGENT_SERVER", "url": url, "port": 8000}]
        open_unread(clients, api, make_sandbox(database, user, exposed_urls=urls))
        thread.join(30)
        assert not thread.is_alive()


def test_small_messages_pass_beside_others_that_are_not_read(
    serve: Serve, database: Database, user: ApiUser, limits: list[BufferLimit]
) -> None:
    def flood(connection: ServerConnection) -> None:
        for _ in range(3):
            connection.send(MESSAGE)

    with serve() as api, agent_server(database, user, flood) as unread, ExitStack() as clients:
        for _ in range(2):
            open_unread(clients, api, unread)
        assert eventually(lambda: limits[0].held.total() > len(MESSAGE))
        with agent_server(database, user, echo) as own, websocket(api, own, **key_of(own)) as small:
            for number in range(100):
                small.send(str(number) * 1000)
                assert small.recv(timeout=20) == str(number) * 1000


def test_largest_message_passes_in_both_directions(
    serve: Serve, database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes a message whose characters take four bytes each in memory."""
    monkeypatch.undo()
    message = "x" * (16 * MEGABYTE - 4) + "\N{GRINNING FACE}"
    with (
        serve() as api,
        agent_server(database, user, echo) as sandbox,
        websocket(api, sandbox, **key_of(sandbox)) as client,
    ):
        for _ in range(2):
            client.send(message)
            assert client.recv(timeout=60) == message


def test_message_of_a_sandbox_that_is_too_large_closes_its_websocket(
    serve: Serve, database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()

    def send_too_much(connection: ServerConnection) -> None:
        connection.send(b"x" * (16 * MEGABYTE + 1))
        connection.recv(timeout=60)

    with (
        serve() as api,
        agent_server(database, user, send_too_much) as sandbox,
        websocket(api, sandbox, **key_of(sandbox)) as client,
    ):
        assert close_of(client)[0] == 1009


def test_websocket_counts_until_its_client_has_read(serve: Serve, database: Database, user: ApiUser) -> None:
    ended: list[Any] = []

    def send_and_close(connection: ServerConnection) -> None:
        connection.send(MESSAGE * 3)
        connection.close()
        ended.append(connection)

    with serve(user_websockets=1) as api, agent_server(database, user, send_and_close) as sandbox:
        with ExitStack() as clients:
            open_unread(clients, api, sandbox)
            assert eventually(lambda: ended)
            with websocket(api, sandbox, **key_of(sandbox)) as second:
                assert close_of(second)[0] == 1013
        with agent_server(database, user, echo) as own:

            def is_open() -> bool:
                with websocket(api, own, **key_of(own)) as third, suppress(ConnectionClosed):
                    third.send("a")
                    return third.recv(timeout=20) == "a"
                return False

            assert eventually(is_open)
