"""Every write of the API to an agent server has a point before and after it."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosedOK

from api.agent_server.client import AgentServers
from api.limits.buffers import BufferLimit, Share
from api.sandbox_proxy.http import HttpProxy, RequestBody
from api.sandbox_proxy.request import SAFE_METHODS, ProxyRequest
from api.sandbox_proxy.websocket import Client, WebSocketProxy
from api.server.counted_websockets import Buffers
from shared.observability import failpoints
from tests.drills.faults.api_writes import write_kinds
from tests.drills.faults.observer import Observer
from tests.factories import DOOR, VAULT
from tests.services.directories import REPOSITORY

METHODS = ("GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE")
LIBRARIES = re.compile(
    r"^\s*(?:import|from) (?:httpx|httpcore|websockets|aiohttp|requests|urllib3|urllib\.request|http\.client)\b",
    re.MULTILINE,
)
# The files that import a library for HTTP or websockets, with the test that covers their writes or the reason for which
# they have none.
HTTP_FILES: Mapping[str, str] = {
    "api/agent_server/client.py": "test_each_write_to_an_agent_server_has_points",
    "api/server/websockets.py": "only names of types; it is the server's side",
    "api/sandbox_proxy/http.py": "test_each_write_on_the_sandbox_path_has_points",
    "api/sandbox_proxy/websocket.py": "test_each_frame_has_points",
    "api/sandbox_proxy/server_connection.py": "connections of `api.sandbox_proxy.websocket`",
    "api/sandbox_proxy/event_replay.py": "only the name of a type; it reads",
    "api/git/http_client.py": "only reads git hosts",
    "api/git/guarded_transport.py": "connections of `api.git.http_client`",
    "api/web/admin/flower.py": "Flower's own pages; Flower is started with `read_only`",
    "shared/cli/remote/service.py": "the command line on a user's machine: its requests are the API's",
    "api/agent_server/transport.py": "connections of `api.agent_server.client` and `api.sandbox_proxy.http`",
    "shared/agent_server/door.py": "only the names of errors",
    "shared/agent_server/limits.py": "only the name of an error",
    "shared/agent_server/responses.py": "only the name of a type; it reads",
    "shared/agent_server/untrusted_http.py": "options and the names of errors; sends no request",
    "worker/agent_server/client.py": "tests.drills.faults.test_points_cover_writes",
    "worker/agent_server/transport.py": "requests of `worker.agent_server.client`, and their connections",
    "worker/agent_server/door_names.py": "connections of `worker.agent_server.client`",
    "worker/context.py": "only the name of a type",
    "worker/loops/door_check.py": "only the name of a type; it reads",
    "worker/engine/docker_engine.py": "only the name of an error; tests.drills.faults.test_points_cover_writes",
    "worker/network/firewall.py": "rules of the node, which each resync recomputes; tests.isolation.network",
    "worker/engine/docker_client.py": "only the names of errors; sends no request",
}

Send = Callable[[httpx.AsyncBaseTransport], Awaitable[object]]


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    points: list[str] = []
    monkeypatch.setattr(failpoints, "observer", Observer(points.append))
    failpoints.begin("test")
    return points


def points_around(reached: list[str], send: Send) -> tuple[list[str], list[str]]:
    """The points reached before the request is sent, and after."""
    before: list[str] = []

    def respond(_request: httpx.Request) -> httpx.Response:
        before.extend(reached)
        return httpx.Response(200, json={})

    async def run() -> None:
        await send(httpx.MockTransport(respond))

    asyncio.run(run())
    return before, reached[len(before) :]


def points(kind: str) -> tuple[list[str], list[str]]:
    return [f"test/1/{kind}.before"], [f"test/1/{kind}.after"]


@pytest.mark.parametrize("method", METHODS)
def test_each_write_to_an_agent_server_has_points(method: str, reached: list[str]) -> None:
    async def send(transport: httpx.AsyncBaseTransport) -> None:
        servers = AgentServers(VAULT, DOOR)
        servers._client = httpx.AsyncClient(transport=transport)
        await servers.request_at("http://agent", "key", method, "/api/conversations/1/events")
        await servers.close()

    expected: tuple[list[str], list[str]] = ([], []) if method == "GET" else points("agent_server.events")
    assert points_around(reached, send) == expected


@pytest.mark.parametrize("method", METHODS)
def test_each_write_on_the_sandbox_path_has_points(method: str, reached: list[str]) -> None:
    proxied = ProxyRequest("s" * 32, method, b"/api", [], "http", None, session_key="key", api_key=None)
    seen: Any = SimpleNamespace(id="s", exposed_urls=[{"name": "AGENT_SERVER", "url": "http://agent", "port": 8000}])
    here: Any = SimpleNamespace(vault=VAULT, door=DOOR, limits=SimpleNamespace(proxied=None))
    part: Any = None

    async def send(transport: httpx.AsyncBaseTransport) -> None:
        exchanges = HttpProxy(here, part, part, part)
        exchanges._transport = transport  # type: ignore[assignment]
        await exchanges._send(proxied, seen, RequestBody(proxied, part))

    expected: tuple[list[str], list[str]] = ([], []) if method in SAFE_METHODS else points("agent_server.forward")
    assert points_around(reached, send) == expected


def test_each_frame_has_points(reached: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[str, list[str]]] = []
    frames = iter([{"type": "websocket.receive", "text": "hello"}])

    class Server:
        protocol = SimpleNamespace(close_rcvd=SimpleNamespace(code=1000, reason=""))

        async def send_in_time(self, frame: str) -> None:
            sent.append((frame, list(reached)))

    async def receive() -> dict[str, str]:
        try:
            return next(frames)
        except StopIteration:
            raise ConnectionClosedOK(None, None) from None

    async def ensure_running(_sockets: WebSocketProxy, _proxied: ProxyRequest) -> None:
        pass

    monkeypatch.setattr(WebSocketProxy, "_ensure_running", ensure_running)
    limits = SimpleNamespace(websockets=None, websocket_bytes=None)
    nowhere: Any = SimpleNamespace(vault=VAULT, door=DOOR, agent_servers=None, limits=limits)
    sockets = WebSocketProxy(nowhere, *[nowhere] * 3)
    client = Client(receive, nowhere, Buffers(), Share(BufferLimit(1000), "a"))
    asyncio.run(sockets._pass_up(nowhere, client, Server()))  # type: ignore[arg-type]
    before, after = points("agent_server.send_frame")
    assert (sent, reached) == ([("hello", before)], before + after)


def test_every_file_that_can_send_requests_is_known() -> None:
    files = [file for part in ("api", "worker", "shared") for file in (REPOSITORY / part).rglob("*.py")]
    assert {str(file.relative_to(REPOSITORY)) for file in files if LIBRARIES.search(file.read_text())} == set(
        HTTP_FILES
    )


SOURCE = """
async def say(here, sandbox):
    path = paths.events(sandbox)
    await here.agent_servers.request(sandbox, "POST", paths.conversation(sandbox, "/run"))
    await here.agent_servers.request(sandbox, "POST", path, json={})
    await here.agent_servers.request(sandbox, "GET", paths.SEARCH)
    await here.agent_servers.request_at("http://agent", "key", "POST", paths.HOOKS)
    async with here.agent_servers.exchange(sandbox, "POST", paths.SKILLS) as response:
        return response
"""


def test_calls_that_write_are_found_in_the_source() -> None:
    assert write_kinds(SOURCE) == {f"agent_server.{word}" for word in ("events", "hooks", "run", "skills")}
    with pytest.raises(AssertionError, match="is not in the source"):
        write_kinds(SOURCE.replace('"/run"', "run"))
