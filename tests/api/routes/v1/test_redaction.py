"""Errors that quote secrets of their owner: no response, no archive and no row contains the secrets."""

import io
import zipfile
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.conversations import start_tasks
from shared.db.database import Database
from shared.models import Conversation, Sandbox
from shared.states import Stage
from shared.users import secrets, settings_store
from tests.api.agent_reports import event_report
from tests.api.routes.v1.settings.stored import raw_store
from tests.factories import VAULT, ApiUser, make_start_task
from tests.rows import all_rows

Post = Callable[..., int]

SETTINGS: dict[str, Any] = {
    "llm_api_key": "plain-llm-key",
    "search_api_key": "plain-search-key",
    "agent_settings": {
        "llm": {"aws_secret_access_key": "plain-aws-key", "extra_headers": {"X-Key": "plain-header"}},
        "verification": {"critic_api_key": "plain-critic-key"},
    },
    "llm_profiles": {"profiles": {"deep": {"model": "m", "api_key": "plain-profile-key"}}, "active": None},
    "mcp_config": {
        "sse_servers": [],
        "stdio_servers": [{"name": "a", "command": "b", "args": [], "env": {"TOKEN": "plain-env"}}],
        "shttp_servers": [{"url": "https://u:plain-user@mcp.example/?api_key=plain-url", "api_key": "plain-mcp-key"}],
    },
}
TOKENS = {"github": {"token": "plain-token"}, "bitbucket": {"token": "jo:plain-password"}}
QUOTED = [
    *("plain-llm-key", "plain-search-key", "plain-aws-key", "plain-header", "plain-critic-key", "plain-profile-key"),
    *("plain-env", "plain-user", "plain-url", "plain-mcp-key", "plain-token", "plain-custom"),
    "plain-password",
    # A secret that was replaced after the conversation began.
    "sk-proj-0123456789abcdefghij",
]
ERROR = f"AuthenticationError: incorrect API key: {' '.join(QUOTED)}"
EVENTS = [
    lambda: event_report("ConversationErrorEvent", code="LLMAuthenticationError", detail=ERROR),
    lambda: event_report("AgentErrorEvent", error=ERROR, tool_call_id="call_1"),
    lambda: event_report("ServerErrorEvent", code="x", detail={"nested": [ERROR]}),
    lambda: event_report(
        "ObservationEvent", observation={"kind": "MCP", "is_error": True, "content": [{"text": ERROR}]}
    ),
]


@pytest.fixture
def _secrets(database: Database, user: ApiUser) -> None:
    with database.transaction() as session:
        with settings_store.editing(session, VAULT, user.id) as draft:
            draft.sealed.update(SETTINGS)
        secrets.put_provider_tokens(session, VAULT, user.id, TOKENS)
        secrets.put_custom_secrets(session, VAULT, user.id, {"A": {"secret": "plain-custom"}})


@pytest.mark.usefixtures("_secrets")
@pytest.mark.parametrize("event", EVENTS, ids=["conversation", "agent", "server", "tool"])
def test_error_that_quotes_a_key_is_stored_without_the_key(
    client: TestClient,
    user: ApiUser,
    conversation: Conversation,
    post: Post,
    database: Database,
    event: Callable[[], dict[str, Any]],
) -> None:
    sent = event()
    assert post(f"/events/{conversation.id}", [sent]) == 200
    found = client.get(f"/api/v1/conversation/{conversation.id}/events/search", headers=user.headers)
    archive = client.get(f"/api/v1/app-conversations/{conversation.id}/download", headers=user.headers)
    with zipfile.ZipFile(io.BytesIO(archive.content)) as packed:
        files = "".join(packed.read(name).decode() for name in packed.namelist())
    for kept in (found.text, files, raw_store(database)):
        assert "AuthenticationError: incorrect API key: ******" in kept
        assert [secret for secret in QUOTED if secret in kept] == []
    assert found.json()["items"][0].items() >= {name: sent[name] for name in ("id", "kind", "timestamp")}.items()


@pytest.mark.parametrize("stage", [Stage.STARTING_CONVERSATION, Stage.READY])
def test_error_that_quotes_a_secret_of_its_start_request_is_stored_redacted(
    client: TestClient,
    user: ApiUser,
    sandbox: Sandbox,
    conversation: Conversation,
    post: Post,
    database: Database,
    stage: Stage,
) -> None:
    sealed = VAULT.encrypt('{"DEPLOY_KEY": "plain-requested"}')
    task = make_start_task(
        database, user, sandbox, stage=Stage.STARTING_CONVERSATION, conversation_id=conversation.id, secrets=sealed
    )
    if stage == Stage.READY:
        with database.transaction() as session:
            start_tasks.advance(session, task, stage)
    assert post(f"/events/{conversation.id}", [event_report("AgentErrorEvent", error="no: plain-requested")]) == 200
    found = client.get(f"/api/v1/conversation/{conversation.id}/events/search", headers=user.headers)
    assert found.json()["items"][0]["error"] == "no: ******"
    assert "plain-requested" not in raw_store(database)
    assert client.delete(f"/api/v1/app-conversations/{conversation.id}", headers=user.headers).status_code == 200
    assert all_rows(database)["start_task"] == []


def test_ids_are_not_redacted(
    client: TestClient, user: ApiUser, conversation: Conversation, post: Post, database: Database
) -> None:
    sent = event_report("AgentErrorEvent", error="it ends", tool_call_id="call_1234", action_id="1234")
    with database.transaction() as session:
        values = {"A": {"secret": "1234"}, "B": {"secret": sent["id"][:8]}, "C": {"secret": "2026"}}
        secrets.put_custom_secrets(session, VAULT, user.id, values)
    assert post(f"/events/{conversation.id}", [sent]) == 200
    found = client.get(f"/api/v1/conversation/{conversation.id}/events/search", headers=user.headers)
    assert found.json()["items"] == [sent]
