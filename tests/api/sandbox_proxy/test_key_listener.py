"""The client port: a sandbox's key selects the sandbox, and no other route of the service is available."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from api.request.session_cookie import COOKIE
from shared.db.database import Database
from shared.models import Sandbox
from tests.api.sandbox_proxy.doubles import Agent, Serve, Worker, key_of
from tests.api.sandbox_proxy.test_websocket import socket
from tests.factories import ApiUser, make_sandbox, session_key_of
from tests.fakes.traffic import Receive, Send, TrafficServer
from tests.services.asgi import serving

PORT = 3002
EVENTS = f"sockets/events/{'0' * 32}?resend_mode=all"


class Program(TrafficServer):
    """A user's program in a sandbox. It echoes the frames of a websocket from the first one on."""

    async def _serve_websocket(self, scope: Any, receive: Receive, send: Send) -> None:
        self.handshake = scope
        await receive()
        await send({"type": "websocket.accept"})
        await self._echo(receive, send)


@pytest.fixture
def clients(serve: Serve) -> Iterator[httpx.Client]:
    """A client of the client port."""
    with serve(at_port=PORT, client_port=PORT) as client:
        yield client


def test_key_selects_the_sandbox(clients: httpx.Client, agent: Agent, running: Sandbox) -> None:
    key = session_key_of(running)
    headers = key_of(running) | {"Cookie": f"{COOKIE}=stolen"}
    assert clients.get("/api/a%2Fb?c=d", headers=headers).status_code == 200
    assert clients.get(f"/api/x?session_api_key={key}&e=f").status_code == 200
    assert [got.target for got in agent.server.got] == ["/api/a%2Fb?c=d", "/api/x?e=f"]
    for got in agent.server.got:
        assert (got.header("x-forwarded-prefix"), got.header("cookie")) == (None, None)
    assert clients.get("/moved", headers=key_of(running)).headers["Location"] == "/moved/"
    assert clients.get("/moved?absolute", headers=key_of(running)).headers["Location"] == "/moved/"


@pytest.mark.parametrize("path", ["/", "/login", "/docs", "/openapi.json", "/api/v1/users/me", "/metrics", "/ready"])
def test_no_other_route_of_the_service_is_available(clients: httpx.Client, user: ApiUser, path: str) -> None:
    for headers in ({}, user.headers, {"X-Session-API-Key": user.key}):
        assert clients.get(path, headers=headers).status_code == 401


def test_health_needs_no_key(clients: httpx.Client, agent: Agent, running: Sandbox) -> None:
    response = clients.get("/health")
    assert (response.status_code, response.json(), agent.server.got) == (200, "OK", [])
    assert clients.get("/health", headers=key_of(running)).status_code == 200
    assert [got.target for got in agent.server.got] == ["/health"]


def test_head_is_left_to_the_agent_server(clients: httpx.Client, agent: Agent, running: Sandbox) -> None:
    response = clients.head("/health", headers=key_of(running))
    assert ("X-Request-ID" in response.headers, response.headers["Cache-Control"]) == (True, "no-store")
    assert [got.method for got in agent.server.got] == ["HEAD"]


def test_paused_sandbox_is_woken(clients: httpx.Client, paused: Sandbox, worker: Worker) -> None:
    assert clients.get("/api/x", headers=key_of(paused)).status_code == 200
    assert worker.resumed == [paused.id]


@pytest.mark.parametrize("in_query", [True, False])
def test_websocket_is_of_the_key_s_sandbox(clients: httpx.Client, running: Sandbox, in_query: bool) -> None:
    key = session_key_of(running)
    url = f"{str(clients.base_url).replace('http', 'ws', 1).rstrip('/')}/sockets/events/1?resend_mode=all"
    with connect(f"{url}&session_api_key={key}" if in_query else url) as socket:
        if not in_query:
            socket.send(json.dumps({"type": "auth", "session_api_key": key}))
        assert socket.recv() == "/sockets/events/1?resend_mode=all"
        socket.send("hello")
        assert socket.recv() == "hello"


def test_other_port_needs_the_id(api: httpx.Client, running: Sandbox) -> None:
    """Otherwise a redirect of an agent server could lead a browser to any page of this service."""
    assert api.get("/sandbox/by-key/moved", headers=key_of(running)).status_code == 401


class TestExposedPorts:
    """`/sandbox/{id}-{port}`."""

    def test_port_gets_requests_without_the_key(
        self, api: httpx.Client, database: Database, user: ApiUser, agent: Agent
    ) -> None:
        with serving(server := TrafficServer(key="")) as url:
            other = {"name": "WORKER_1", "url": url, "port": 8011}
            sandbox = make_sandbox(database, user, exposed_urls=[*agent.urls, other])
            assert api.get(f"/sandbox/{sandbox.id}-8011/x", headers=key_of(sandbox)).status_code == 401
            assert api.get(f"/sandbox/{sandbox.id}-8001/x", headers=key_of(sandbox)).status_code == 404
            [got] = server.got
            assert (got.target, got.header("x-session-api-key")) == ("/x", None)
            assert got.header("x-forwarded-prefix") == f"/sandbox/{sandbox.id}-8011"
        assert agent.server.got == []

    def test_port_gets_websockets_without_the_key(
        self, api: httpx.Client, database: Database, user: ApiUser, agent: Agent, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Neither an auth frame nor a search for events, which has the key too, reaches the user's program."""
        # A search would precede the first frame.
        monkeypatch.setattr("api.sandbox_proxy.event_replay.STATE_TIMEOUT_SECONDS", 0.0)
        with serving(server := Program()) as url:
            other = {"name": "WORKER_1", "url": url, "port": 8011}
            sandbox = make_sandbox(database, user, exposed_urls=[*agent.urls, other])
            with socket(api, f"{sandbox.id}-8011", EVENTS, **key_of(sandbox)) as connection:
                for frame in ("first", "second"):
                    connection.send(frame)
                    assert connection.recv(timeout=20) == frame
            assert server.handshake["path"] == f"/{EVENTS.partition('?')[0]}"
            assert session_key_of(sandbox) not in str(server.handshake)
            assert server.got == []

    def test_unknown_port_and_missing_key_are_refused(self, api: httpx.Client, user: ApiUser, running: Sandbox) -> None:
        assert api.get(f"/sandbox/{running.id}-8012/x", headers=key_of(running)).status_code == 404
        assert api.get(f"/sandbox/{running.id}-8000/x").status_code == 401
        assert api.get(f"/sandbox/{running.id}-0/x", headers=user.headers).status_code == 404
