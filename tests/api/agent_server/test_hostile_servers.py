"""Hostile agent servers: the API's requests to them fail for their owner only."""

import time
import tracemalloc

import pytest
from fastapi.testclient import TestClient

from api.agent_server import client as agent_server_client
from shared.db.database import Database
from shared.models import Conversation
from tests.factories import ApiUser, make_conversation, make_sandbox
from tests.services.hostile_server import (
    HostileServer,
    Mode,
    answering,
    dripping,
    dripping_head,
    flooding,
    hostile,
    inflating,
    never_answering,
)

MAX_GROWTH = 64 * 1024 * 1024


def make_hostile(database: Database, user: ApiUser, server: HostileServer) -> Conversation:
    """Make a conversation in a sandbox with this agent server."""
    urls = [{"name": "AGENT_SERVER", "url": server.url, "port": 8000}]
    return make_conversation(database, user, make_sandbox(database, user, exposed_urls=urls))


def send(client: TestClient, user: ApiUser, conversation: Conversation) -> int:
    path = f"/api/v1/app-conversations/{conversation.id}/git/changes"
    return int(client.get(path, params={"path": "/"}, headers=user.headers).status_code)


@pytest.mark.parametrize("mode", [never_answering, dripping, dripping_head])
def test_timeout_covers_the_whole_response(
    client: TestClient, database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    monkeypatch.setattr(agent_server_client, "SECONDS", 0.3)
    with hostile(mode) as server:
        conversation = make_hostile(database, user, server)
        began = time.monotonic()
        assert send(client, user, conversation) == 502
        assert time.monotonic() - began < 20


@pytest.mark.parametrize(("mode", "status"), [(flooding, 413), (inflating, 502)])
def test_response_needs_no_more_memory_than_its_max_size(
    client: TestClient, database: Database, user: ApiUser, mode: Mode, status: int
) -> None:
    with hostile(mode) as server:
        conversation = make_hostile(database, user, server)
        tracemalloc.start()
        try:
            assert send(client, user, conversation) == status
            assert tracemalloc.get_traced_memory()[1] < MAX_GROWTH
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("content", [b'"\\ud800"', b"NaN"])
def test_response_that_is_not_json_is_a_502(
    client: TestClient, database: Database, user: ApiUser, content: bytes
) -> None:
    with hostile(answering(content)) as server:
        assert send(client, user, make_hostile(database, user, server)) == 502


@pytest.mark.parametrize("content", [b"[" * 1_000_000, b"[" + b"[]," * 1_000_000 + b"[]]", b"[" + b"9" * 1000 + b"]"])
def test_response_that_costs_too_much_to_parse_is_a_413(
    client: TestClient, database: Database, user: ApiUser, content: bytes
) -> None:
    with hostile(answering(content)) as server:
        assert send(client, user, make_hostile(database, user, server)) == 413


def test_cookie_of_one_server_is_not_sent_to_another(client: TestClient, database: Database, user: ApiUser) -> None:
    with hostile(answering([], Set_Cookie="session=" + "x" * 4000)) as server, hostile(answering([])) as other:
        for each in (server, other):
            assert send(client, user, make_hostile(database, user, each)) == 200
    assert b"cookie" not in other.requested[0].lower()


def test_file_list_is_cut_to_its_max_length(client: TestClient, database: Database, user: ApiUser) -> None:
    with hostile(answering({"exit_code": 0, "stdout": "./a\n" * 100_000, "stderr": None})) as server:
        conversation = make_hostile(database, user, server)
        response = client.get(f"/api/v1/app-conversations/{conversation.id}/files", headers=user.headers)
    assert len(response.json()) == 2000


def test_stop_reads_no_page_with_too_many_runs(client: TestClient, database: Database, user: ApiUser) -> None:
    one = {"id": "01234567-89ab-cdef-0123-456789abcdef"}
    client.headers["Origin"] = "http://testserver"
    assert client.post("/login", data={"api_key": user.key}, follow_redirects=False).status_code == 303
    with hostile(answering({"items": [one] * 5000})) as server:
        conversation = make_hostile(database, user, server)
        assert client.post(f"/api/v1/sandboxes/{conversation.sandbox_id}/pause").status_code == 200
        assert len(server.requested) == 1
