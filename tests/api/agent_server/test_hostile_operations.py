"""The API's requests to a hostile agent server end in time, with the right status and in bounded memory."""

import asyncio
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from api.agent_server import client as agent_server_client
from api.agent_server.client import MAX_CONCURRENT, MAX_OF_CALLER, AgentServers
from api.json_text import SMALL_BYTES
from api.routes.v1 import sandbox_interrupt
from shared.agent_server.responses import read_shape
from shared.db.database import Database
from shared.models import Conversation, Sandbox
from shared.states import Desired
from tests import effort
from tests.factories import DOOR, VAULT, ApiUser, make_conversation, make_sandbox
from tests.services.hostile_server import MODES, HostileServer, answering, hostile
from tests.waiting import eventually

MESSAGE = {"content": [{"type": "text", "text": "go on"}]}
V0, V1 = "/api/conversations", "/api/v1/app-conversations"
Operation = tuple[str, str, Any]
READ: dict[str, Operation] = {
    "changes": ("GET", f"{V1}/{{id}}/git/changes?path=/a", None),
    "diff": ("GET", f"{V1}/{{id}}/git/diff?path=/a", None),
    "files": ("GET", f"{V1}/{{id}}/files", None),
    "skills": ("GET", f"{V1}/{{id}}/skills", None),
    "hooks": ("GET", f"{V1}/{{id}}/hooks", None),
    "V0 changes": ("GET", f"{V0}/{{id}}/git/changes", None),
    "V0 diff": ("GET", f"{V0}/{{id}}/git/diff?path=a", None),
}
# The content of their responses is not JSON, or not read.
UNREAD: dict[str, Operation] = {
    "file": ("GET", f"{V1}/{{id}}/file?file_path=/a", None),
    "V0 file": ("GET", f"{V0}/{{id}}/select-file?file=a", None),
    "message": ("POST", f"{V1}/{{id}}/send-message", MESSAGE),
    "V0 message": ("POST", f"{V0}/{{id}}/message", {"message": "go on"}),
    "profile": ("POST", f"{V1}/{{id}}/switch_profile", {"profile_name": "fast"}),
    "ACP model": ("POST", f"{V1}/{{id}}/switch_acp_model", {"model": "m"}),
}
OPERATIONS = READ | UNREAD
# For a change, the tests combine each mode with every third operation, and vice versa; at night, with all.
STEP = effort.choose(quick=3, change=3, thorough=1)
SILENT = ("never answers", "drips", "drips its headers")
STATUS = {"floods": 413, "crumbles": 413}
# The API forwards a refusal if the request has values of the client; any other refusal is a 502.
FAILED = ("inflates", "promises", "large header", "other key", "error", "moved", "moved to no host", *SILENT)
PASSED_ON = ("changes", "diff", "V0 changes", "V0 diff", "file", "V0 file", "message", "V0 message")
# Responses that the API cannot distinguish from a list of changes.
VALID = {("changes", "list instead of an object"), ("V0 changes", "list instead of an object")}
MAX_SECONDS = 20
MAX_GROWTH = 64 * 1024 * 1024


def expected(operation: str, mode: str) -> int:
    if mode in STATUS or mode in FAILED:
        return STATUS.get(mode, 502)
    if mode == "odd refusal":
        return 400 if operation in PASSED_ON else 502
    if mode == "nested" and operation in READ:
        return 413
    return 200 if operation in UNREAD or (operation, mode) in VALID else 502


@pytest.fixture
def conversation(client: TestClient, database: Database, user: ApiUser) -> Iterator[tuple[Conversation, HostileServer]]:
    """A conversation in a sandbox with a hostile agent server, and its owner's profile `fast`."""
    saved = client.post("/api/v1/settings/profiles/fast", json={"llm": {"model": "m"}}, headers=user.headers)
    assert saved.status_code == 201
    with hostile(MODES["never answers"]) as server:
        urls = [{"name": "AGENT_SERVER", "url": server.url, "port": 8000}]
        yield make_conversation(database, user, make_sandbox(database, user, exposed_urls=urls)), server


@pytest.mark.parametrize("mode", MODES)
def test_operation_ends_in_time_with_the_right_status(
    client: TestClient,
    user: ApiUser,
    conversation: tuple[Conversation, HostileServer],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    found, server = conversation
    monkeypatch.setattr(agent_server_client, "SECONDS", 0.3 if mode in SILENT else 2 * MAX_SECONDS)
    server.mode = MODES[mode]
    wrong = {}
    for operation, (method, path, body) in list(OPERATIONS.items())[list(MODES).index(mode) % STEP :: STEP]:
        began = time.monotonic()
        tracemalloc.start()
        try:
            response = client.request(method, path.format(id=found.id), json=body, headers=user.headers)
            if tracemalloc.get_traced_memory()[1] > MAX_GROWTH:
                wrong[operation] = "memory"
        finally:
            tracemalloc.stop()
        if response.status_code != expected(operation, mode) or time.monotonic() - began > MAX_SECONDS:
            wrong[operation] = f"{response.status_code} after {time.monotonic() - began:.1f} s: {response.text[:200]}"
    assert wrong == {}


@pytest.mark.parametrize("mode", MODES)
def test_stop_ends_in_time(
    client: TestClient,
    database: Database,
    user: ApiUser,
    conversation: tuple[Conversation, HostileServer],
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    found, server = conversation
    monkeypatch.setattr(sandbox_interrupt, "SECONDS", 0.3 if mode in SILENT else MAX_SECONDS)
    server.mode = MODES[mode]
    client.headers["Origin"] = "http://testserver"
    client.post("/login", data={"api_key": user.key}, follow_redirects=False)
    began = time.monotonic()
    assert client.post(f"/api/v1/sandboxes/{found.sandbox_id}/pause").status_code == 200
    assert time.monotonic() - began < MAX_SECONDS
    with database.reading() as session:
        desired = session.get_one(Sandbox, found.sandbox_id).desired
    # The first of the endless pages has a conversation, which can be interrupted.
    assert desired == (Desired.RUNNING if mode == "endless pages" else Desired.PAUSED)


@pytest.mark.parametrize(("number", "most"), [(1, MAX_CONCURRENT), (100, MAX_OF_CALLER)])
def test_responses_of_a_user_s_servers_are_read_in_a_limited_number_at_a_time(number: int, most: int) -> None:
    """Each response may be large, and stays in memory until it is parsed."""
    pending = [0]
    counts: list[int] = []

    async def send_body() -> AsyncIterator[bytes]:
        pending[0] += 1
        counts.append(pending[0])
        await asyncio.sleep(0.01)
        pending[0] -= 1
        yield b""

    async def respond(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=send_body())

    async def send_often() -> None:
        servers = AgentServers(VAULT, DOOR)
        servers._client = httpx.AsyncClient(transport=httpx.MockTransport(respond))
        sent = (servers.request_at(f"http://agent{each % number}", "key", "GET", "/") for each in range(3 * most))
        await asyncio.gather(*sent)
        await servers.close()

    asyncio.run(send_often())
    assert (len(counts), max(counts)) == (3 * most, most)


def test_silent_servers_delay_no_request_to_another_server_of_the_user() -> None:
    async def respond(request: httpx.Request) -> httpx.Response:
        if request.url.host != "healthy":
            await asyncio.Event().wait()
        return httpx.Response(200)

    async def send() -> int:
        servers = AgentServers(VAULT, DOOR)
        servers._client = httpx.AsyncClient(transport=httpx.MockTransport(respond))
        silent = [
            asyncio.ensure_future(servers.request_at(f"http://silent{each}", "key", "GET", "/"))
            for each in range(MAX_OF_CALLER)
        ]
        await asyncio.sleep(0)  # they are sent first
        response = await servers.request_at("http://healthy", "key", "GET", "/", seconds=5)
        for one in silent:
            one.cancel()
        return response.status

    assert asyncio.run(send()) == 200


def test_responses_that_wait_to_be_parsed_are_limited(
    client: TestClient,
    user: ApiUser,
    conversation: tuple[Conversation, HostileServer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server may send large responses faster than they are parsed."""
    found, server = conversation
    server.mode, released = answering([{"path": "x" * SMALL_BYTES}]), threading.Event()

    def read_slowly(*arguments: Any) -> Any:
        released.wait(60)
        return read_shape(*arguments)

    monkeypatch.setattr("api.agent_server.responses.read_shape", read_slowly)

    def get_changes(_number: int) -> int:
        path = f"{V1}/{found.id}/git/changes?path=/a"
        return int(client.get(path, headers=user.headers).status_code)

    with ThreadPoolExecutor(3 * MAX_CONCURRENT) as pool:
        statuses = pool.map(get_changes, range(3 * MAX_CONCURRENT))
        try:
            assert eventually(lambda: len(server.requested) >= MAX_CONCURRENT)
            with pytest.raises(AssertionError):
                eventually(lambda: len(server.requested) > MAX_CONCURRENT, deadline_seconds=1)
        finally:
            released.set()
        assert set(statuses) == {200}
