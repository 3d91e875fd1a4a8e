"""Limits of open requests: a program that does not respond keeps them open, and they must not exhaust a process."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from api.sandbox_proxy import http
from shared.db.database import Database
from shared.models import Sandbox
from tests.api.sandbox_proxy.doubles import Agent, Serve, key_of
from tests.factories import ApiUser, make_sandbox, session_key_of
from tests.waiting import eventually

LIMIT = 3
# A request holds a place of its user, and of all users.
MAX_WRITE_SECONDS = 600.0
WAYS = ("session key", "owner's key", "cloud-proxy")


@dataclass
class Silent:
    """A sandbox whose program accepts connections and does not respond."""

    sandbox: Sandbox
    listener: socket.socket
    accepted: list[socket.socket] = field(default_factory=list)

    def begin(self, stack: ExitStack, api: httpx.Client, count: int = 1) -> None:
        """Send requests until the program has them. They are open until the stack is closed."""
        key = session_key_of(self.sandbox)
        head = f"GET /sandbox/{self.sandbox.id}/x HTTP/1.1\r\nHost: a\r\nX-Session-API-Key: {key}\r\n\r\n"
        for _ in range(count):
            client = socket.create_connection((api.base_url.host, api.base_url.port or 80))
            stack.enter_context(client).sendall(head.encode())
            self.accepted.append(self.listener.accept()[0])


@pytest.fixture
def silent(database: Database, user: ApiUser) -> Iterator[Silent]:
    """A silent sandbox of the user."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.settimeout(20)
        silent = Silent(make_sandbox(database, user, exposed_urls=urls_of(listener.getsockname()[1])), listener)
        yield silent
        for connection in silent.accepted:
            connection.close()


def urls_of(port: int) -> list[dict[str, Any]]:
    return [{"name": "AGENT_SERVER", "url": f"http://127.0.0.1:{port}", "port": 8000}]


def send(api: httpx.Client, sandbox: Sandbox, user: ApiUser, way: str = WAYS[0]) -> int:
    """Send a request with the sandbox's key, its owner's, or both; return the status."""
    if way == "cloud-proxy":
        envelope = {"host": f"http://any/sandbox/{sandbox.id}", "path": "/api/x", "headers": key_of(sandbox)}
        return api.post("/api/cloud-proxy", json=envelope, headers=user.headers).status_code
    headers = key_of(sandbox) if way == "session key" else user.headers
    return api.get(f"/sandbox/{sandbox.id}/api/x", headers=headers).status_code


@pytest.mark.parametrize("way", WAYS)
def test_open_requests_of_one_user_have_a_limit(
    serve: Serve, database: Database, user: ApiUser, other_user: ApiUser, agent: Agent, silent: Silent, way: str
) -> None:
    own, theirs = (make_sandbox(database, owner, exposed_urls=agent.urls) for owner in (user, other_user))
    with serve(user_proxied=LIMIT) as api:
        agent.server.key = session_key_of(theirs)
        with ExitStack() as clients:
            silent.begin(clients, api, LIMIT)
            assert send(api, own, user, way) == 429
            assert send(api, theirs, other_user, way) == 200
        agent.server.key = session_key_of(own)
        # Clients that have disconnected hold nothing.
        assert eventually(lambda: send(api, own, user, way) == 200)


def test_body_that_a_sandbox_does_not_read_ends_although_its_sender_has_left(
    serve: Serve, running: Sandbox, user: ApiUser, silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 0 < (http.TIMEOUT["write"] or 0) <= MAX_WRITE_SECONDS
    monkeypatch.setitem(http.TIMEOUT, "write", 0.2)
    head = f"POST /sandbox/{silent.sandbox.id}/x HTTP/1.1\r\nHost: a\r\nContent-Length: {10**9}\r\n"
    with serve(user_proxied=1) as api:
        with socket.create_connection((api.base_url.host, api.base_url.port or 80), timeout=0.1) as client:
            client.sendall(f"{head}X-Session-API-Key: {session_key_of(silent.sandbox)}\r\n\r\n".encode())
            silent.accepted.append(silent.listener.accept()[0])
            with suppress(OSError):  # the buffers between both are full, or the request has ended already
                while True:
                    client.send(b"x" * 65_536)
        assert eventually(lambda: send(api, running, user) == 200, deadline_seconds=30)


def test_open_requests_of_all_users_have_a_limit(
    serve: Serve, database: Database, other_user: ApiUser, agent: Agent, silent: Silent
) -> None:
    theirs = make_sandbox(database, other_user, exposed_urls=agent.urls)
    agent.server.key = session_key_of(theirs)
    with serve(max_proxied=1) as api:
        with ExitStack() as clients:
            silent.begin(clients, api)
            assert send(api, theirs, other_user) == 503
        assert eventually(lambda: send(api, theirs, other_user) == 200)


def test_request_at_the_client_port_counts_for_the_sandbox_s_owner(
    serve: Serve, silent: Silent, running: Sandbox
) -> None:
    with serve(at_port=3002, client_port=3002, user_proxied=1) as api, ExitStack() as clients:
        silent.begin(clients, api)
        assert api.get("/api/x", headers=key_of(running)).status_code == 429


def test_request_holds_nothing_after_its_end(serve: Serve, database: Database, user: ApiUser, running: Sandbox) -> None:
    unreachable, without_server = (make_sandbox(database, user, exposed_urls=urls) for urls in (urls_of(9), []))
    ends = [(running, "api/x"), (running, "broken"), (running, "moved"), (unreachable, "x"), (without_server, "x")]
    with serve(user_proxied=1) as api:
        for sandbox, path in ends:
            with suppress(httpx.RemoteProtocolError):
                assert api.get(f"/sandbox/{sandbox.id}/{path}", headers=key_of(sandbox)).status_code != 429
            assert eventually(lambda: send(api, running, user) == 200)


def test_response_counts_until_its_reader_disconnects(
    serve: Serve, user: ApiUser, agent: Agent, running: Sandbox
) -> None:
    agent.server.pieces = 1
    with serve(user_proxied=1) as api:
        with api.stream("GET", f"/sandbox/{running.id}/stream", headers=key_of(running)) as response:
            assert (response.status_code, send(api, running, user)) == (200, 429)
        assert eventually(lambda: send(api, running, user) == 200)
