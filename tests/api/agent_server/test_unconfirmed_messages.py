"""Messages of `send-message` that the agent server may have received, and that a worker checks."""

import json
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from api.agent_server.client import AgentServers
from shared.agent_server.errors import AgentServerUnreachable
from shared.clock import after
from shared.conversations.pending_messages import MAX_PENDING
from shared.db.database import Database
from shared.models import Conversation, PendingMessage
from tests.api.agent_server.requests import send
from tests.factories import ApiUser, make_conversation, make_event, make_sandbox
from tests.fakes.scripted_agent import ScriptedAgent

MESSAGE = {"content": [{"type": "text", "text": "go on"}]}
# No server listens there.
NOWHERE = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:1", "port": 8000}]


def make_message(database: Database, conversation: Conversation, name: str, source: str, **columns: Any) -> None:
    body = {"id": name, "kind": "MessageEvent", "source": source}
    make_event(database, conversation, id=name, body=body, **columns)


def begin_tool(database: Database, conversation: Conversation) -> None:
    make_event(database, conversation, kind="ActionEvent", body={"tool_call_id": "call"}, timestamp=after(61))


def stored_message(database: Database) -> PendingMessage:
    with database.reading() as session:
        return session.exec(select(PendingMessage)).one()


def test_message_before_an_unconfirmed_one_is_recorded(client: TestClient, user: ApiUser, database: Database) -> None:
    """Otherwise a worker could mistake it for the unconfirmed one, which may have the same words."""
    sandbox = make_sandbox(database, user, exposed_urls=NOWHERE)
    conversation = make_conversation(database, user, sandbox, execution_status="running")
    for name, source in (("first", "user"), ("second", "user"), ("reply", "agent")):
        make_message(database, conversation, name, source)
    make_message(database, conversation, "later", "user", timestamp=after(60))
    begin_tool(database, conversation)
    assert send(client, user, conversation, "POST", "send-message", MESSAGE).status_code == 200
    assert stored_message(database).newest_before == "second"


def test_no_message_is_recorded_before_a_confirmed_one(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent, database: Database
) -> None:
    make_message(database, conversation, "first", "user")
    path = f"/api/conversations/{UUID(conversation.id)}/events"
    agent.responses[f"POST {path}"] = (429, json.dumps({"detail": "run capacity is full"}).encode())
    assert send(client, user, conversation, "POST", "send-message", MESSAGE).status_code == 200
    assert stored_message(database).newest_before is None


def test_messages_that_an_agent_server_never_takes_are_stored_up_to_their_maximum(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent
) -> None:
    path = f"/api/conversations/{UUID(conversation.id)}/events"
    agent.responses[f"POST {path}"] = (429, json.dumps({"detail": "run capacity is full"}).encode())
    for _ in range(MAX_PENDING):
        assert send(client, user, conversation, "POST", "send-message", MESSAGE).status_code == 200
    refused = send(client, user, conversation, "POST", "send-message", MESSAGE)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
    assert "pending messages" in refused.json()["detail"]
    assert len(agent.got) == MAX_PENDING


def test_message_waits_for_a_tool_that_began_after_it_was_sent(
    client: TestClient, user: ApiUser, conversation: Conversation, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def begin(*_args: Any, **_content: Any) -> None:
        with database.transaction() as session:
            row = session.get_one(Conversation, conversation.id)
            row.execution_status = "running"
        begin_tool(database, conversation)
        raise AgentServerUnreachable("it did not respond within 25 s")

    monkeypatch.setattr(AgentServers, "request", begin)
    assert send(client, user, conversation, "POST", "send-message", MESSAGE).status_code == 200
    assert stored_message(database).content[0]["text"] == "go on"
