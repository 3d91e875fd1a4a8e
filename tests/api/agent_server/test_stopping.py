"""The web UI's "stop" interrupts agents and leaves the sandbox running; a pause with a key is a pause."""

import json
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from api.json_text import MAX_CONTAINERS
from api.routes.v1 import sandbox_interrupt
from shared.db.database import Database
from shared.models import Conversation, Sandbox
from shared.states import Desired, Status
from tests.factories import ApiUser, make_conversation, make_sandbox, session_key_of
from tests.fakes.scripted_agent import ScriptedAgent

SEARCH = "/api/conversations/search"


@pytest.fixture
def browser(client: TestClient, user: ApiUser) -> TestClient:
    client.headers["Origin"] = "http://testserver"
    assert client.post("/login", data={"api_key": user.key}, follow_redirects=False).status_code == 303
    return client


def script_running(agent: ScriptedAgent, *ids: str) -> None:
    agent.responses[f"GET {SEARCH}"] = (
        200,
        json.dumps({"items": [{"id": one} for one in ids], "next_page_id": None}).encode(),
    )


def stop(client: TestClient, sandbox: Sandbox, user: ApiUser | None = None, kind: str | None = None) -> int:
    query = f"?kind={kind}" if kind else ""
    headers = user.headers if user else None
    return int(client.post(f"/api/v1/sandboxes/{sandbox.id}/pause{query}", headers=headers).status_code)


def desired(database: Database, sandbox: Sandbox) -> str:
    with database.reading() as session:
        return session.get_one(Sandbox, sandbox.id).desired


def test_stop_interrupts_running_agents_every_time(
    browser: TestClient, database: Database, sandbox: Sandbox, conversation: Conversation, agent: ScriptedAgent
) -> None:
    dashed = str(UUID(conversation.id))
    script_running(agent, dashed)
    agent.responses[f"POST /api/conversations/{dashed}/interrupt"] = (200, b'{"success": true}')
    for _ in range(2):
        assert stop(browser, sandbox) == 200
    requests = [(method, path, key) for method, path, _, key, _ in agent.got]
    key = session_key_of(sandbox)
    assert requests == [("GET", SEARCH, key), ("POST", f"/api/conversations/{dashed}/interrupt", key)] * 2
    assert "status=running" in agent.got[0][2]
    assert desired(database, sandbox) == Desired.RUNNING


def test_stop_interrupts_agents_whose_documents_are_too_large(
    browser: TestClient, database: Database, user: ApiUser, sandbox: Sandbox, agent: ScriptedAgent
) -> None:
    """Otherwise it would be a pause, and the agents would continue after the resume."""
    conversation = make_conversation(database, user, sandbox, execution_status="running")
    make_conversation(database, user, sandbox, execution_status="finished")
    costs = [{"model": "m", "cost": 0.1}] * MAX_CONTAINERS
    listed = {"items": [{"id": str(UUID(conversation.id)), "stats": costs}], "next_page_id": None}
    agent.responses[f"GET {SEARCH}"] = (200, json.dumps(listed).encode())
    interrupt = f"/api/conversations/{UUID(conversation.id)}/interrupt"
    agent.responses[f"POST {interrupt}"] = (200, b'{"success": true}')
    assert stop(browser, sandbox) == 200
    assert [(method, path) for method, path, *_ in agent.got] == [("GET", SEARCH), ("POST", interrupt)]
    assert desired(database, sandbox) == Desired.RUNNING


def test_stop_without_a_running_agent_is_a_pause(
    browser: TestClient, database: Database, sandbox: Sandbox, agent: ScriptedAgent
) -> None:
    script_running(agent)
    assert stop(browser, sandbox) == 200
    assert desired(database, sandbox) == Desired.PAUSED


def test_stop_with_a_key_is_a_pause(
    client: TestClient, database: Database, user: ApiUser, sandbox: Sandbox, agent: ScriptedAgent
) -> None:
    script_running(agent, "x")
    assert stop(client, sandbox, user) == 200
    assert (desired(database, sandbox), agent.got) == (Desired.PAUSED, [])


def test_stop_of_kind_stopped_stops_the_sandbox(
    browser: TestClient, database: Database, sandbox: Sandbox, agent: ScriptedAgent
) -> None:
    script_running(agent, "x")
    assert stop(browser, sandbox, kind="stopped") == 200
    assert (desired(database, sandbox), agent.got) == (Desired.STOPPED, [])


@pytest.mark.parametrize(
    "responses",
    [
        {SEARCH: (500, b"secret")},
        {SEARCH: (200, b"{")},
        {SEARCH: (200, b"[]")},
        {SEARCH: (200, b'{"items": [1]}')},
        {SEARCH: (200, b'{"items": [{}]}')},
        {SEARCH: (200, b'{"items": [{"id": "gone"}]}')},  # the interrupt is a 404
    ],
)
def test_sandbox_with_uninterruptible_agents_is_paused(
    browser: TestClient, database: Database, sandbox: Sandbox, agent: ScriptedAgent, responses: dict[str, Any]
) -> None:
    agent.responses.update({f"GET {path}": response for path, response in responses.items()})
    assert stop(browser, sandbox) == 200
    assert desired(database, sandbox) == Desired.PAUSED


def test_sandbox_with_an_unreachable_agent_server_is_paused(
    browser: TestClient, database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_interrupt, "SECONDS", 0.2)
    nowhere = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:1", "port": 8000}]
    sandbox = make_sandbox(database, user, exposed_urls=nowhere)
    assert stop(browser, sandbox) == 200
    assert desired(database, sandbox) == Desired.PAUSED


@pytest.mark.parametrize(("status", "response"), [(Status.STARTING, 200), (Status.PAUSED, 200), (Status.DELETED, 404)])
def test_sandbox_that_is_not_running_gets_no_request(
    browser: TestClient, database: Database, user: ApiUser, agent: ScriptedAgent, status: Status, response: int
) -> None:
    assert stop(browser, make_sandbox(database, user, status=status)) == response
    assert agent.got == []


def test_sandbox_of_another_user_is_a_404(
    browser: TestClient, database: Database, other_user: ApiUser, agent: ScriptedAgent
) -> None:
    assert stop(browser, make_sandbox(database, other_user)) == 404
    assert agent.got == []
