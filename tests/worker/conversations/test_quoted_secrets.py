"""Secrets of a sandbox's owner that its agent server quotes in errors are in no log, no row and no error."""

import json
import logging
from collections.abc import Iterable
from typing import Any

import httpx
import pytest

from shared.clock import now
from shared.conversations import deletion as conversation_deletion
from shared.conversations import known_secrets
from shared.crypto import MissingKey
from shared.models import Conversation, Sandbox
from shared.states import Stage
from shared.users import secrets
from tests.factories import ApiUser
from tests.fakes.agent_server import FakeAgentServer, Reply
from tests.fakes.engine import FakeEngine
from tests.rows import all_rows
from tests.worker.conversations.message_delivery.messages import add_messages, pending
from tests.worker.conversations.start_failures.failures import logged
from tests.worker.scenarios import (
    ASKED,
    MCP,
    SECRETS,
    change,
    claim,
    configure,
    conversation_of,
    request_start,
    row,
    server_of,
    store_settings,
    task_of,
    warm,
)
from worker.context import HIDDEN_TEXT, WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start import start_conversation
from worker.sandboxes.container_spec import init_config
from worker.sandboxes.reconciler import reconcile

HEADER = "the-header-secret-0007"
PASSWORD = "the-app-password-0009"
LINES = '-----BEGIN KEY-----\nof-two-"lines"-0008\n-----END KEY-----'
QUOTED = (*SECRETS, HEADER, PASSWORD, LINES, " ".join(LINES.split()), json.dumps(LINES)[1:-1])
STATUSES = (400, 422, 429, 500)


def quoting(status: int, quoted: Iterable[str] = QUOTED) -> httpx.Response:
    """An error that quotes secrets in each field that the worker reads."""
    text = f"no good: {' '.join(quoted)}"
    return httpx.Response(status, json={"detail": [{"loc": [text], "msg": text}], "exception": text})


def assert_hidden(context: WorkerContext, caplog: pytest.LogCaptureFixture, *more: str) -> None:
    found = logged(caplog) + repr(all_rows(context.database))
    assert [secret for secret in (*QUOTED, *more, "of-two-") if secret in found] == []


@pytest.fixture(autouse=True)
def _configured(context: WorkerContext, user: ApiUser, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    configure(context, user)
    other = {"url": "https://other.example.org", "headers": {"X-Key": HEADER}}
    store_settings(context, user, mcp_config={"shttp_servers": [*MCP["shttp_servers"], other]})
    with context.database.transaction() as session:
        secrets.put_provider_tokens(session, context.vault, user.id, {"bitbucket": {"token": f"jo:{PASSWORD}"}})
        secrets.put_custom_secrets(session, context.vault, user.id, {"LINES": {"secret": LINES}})


@pytest.fixture
def conversation(context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer) -> Conversation:
    """A conversation whose start request brought a secret."""
    assert server.conversations == {}
    task_id = request_start(context, user, sandbox_id)
    start_conversation(context, task_id)
    assert task_of(context, task_id).stage == Stage.READY
    found = conversation_of(context, task_id)
    assert found is not None
    return found


def spend(context: WorkerContext, conversation: Conversation) -> None:
    columns: dict[str, Any] = {"max_budget": 1.0, "metrics": {"accumulated_cost": 2.0}, "title_settled": True}
    change(context, Conversation, conversation.id, execution_status="running", **columns)


def delete(context: WorkerContext, conversation: Conversation) -> None:
    with context.database.transaction() as session:
        conversation_deletion.delete_conversation(session, conversation.id, conversation.owner_id, due_at=now())


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("method", ["send_message", "list_events"])
def test_delivery_redacts_secrets(
    context: WorkerContext,
    user: ApiUser,
    conversation: Conversation,
    server: FakeAgentServer,
    caplog: pytest.LogCaptureFixture,
    method: str,
    status: int,
) -> None:
    server.refuse = {method: quoting(status)}
    add_messages(context, user, conversation.id, "one")
    refresh_conversation(context, conversation.id)
    assert_hidden(context, caplog)
    [message] = pending(context)
    assert ("no good: ******" in (message.refusal or "")) == (status in (400, 422))
    assert ("no good: ******" in logged(caplog)) == (status in (429, 500))


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("method", ["get_conversation", "interrupt", "delete_conversation"])
def test_other_work_on_a_conversation_redacts_secrets(
    context: WorkerContext,
    conversation: Conversation,
    server: FakeAgentServer,
    caplog: pytest.LogCaptureFixture,
    method: str,
    status: int,
) -> None:
    change(context, Conversation, conversation.id, due_at=now())
    if method == "interrupt":
        spend(context, conversation)
    elif method == "delete_conversation":
        delete(context, conversation)
    server.refuse = {method: quoting(status)}
    refresh_conversation(context, conversation.id)
    assert method in server.calls
    assert_hidden(context, caplog)
    assert ("no good: ******" in logged(caplog)) == (status in (429, 500) and method != "delete_conversation")


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("method", ["create_conversation", "run_command", "rename_conversation"])
def test_start_redacts_secrets(
    context: WorkerContext,
    user: ApiUser,
    sandbox_id: str,
    server: FakeAgentServer,
    caplog: pytest.LogCaptureFixture,
    method: str,
    status: int,
) -> None:
    server.refuse = {method: quoting(status)}
    task_id = request_start(context, user, sandbox_id, title="Mine")
    for _ in range(context.settings.max_attempts):
        start_conversation(context, task_id)
    assert "no good: ******" in (task_of(context, task_id).detail or "")
    assert_hidden(context, caplog)


@pytest.mark.parametrize("script", [".openhands/setup.sh", ".openhands/pre-commit.sh", "clone --quiet"])
def test_output_of_a_script_redacts_secrets_of_all_conversations_in_the_sandbox(
    context: WorkerContext,
    user: ApiUser,
    sandbox_id: str,
    conversation: Conversation,
    server: FakeAgentServer,
    caplog: pytest.LogCaptureFixture,
    script: str,
) -> None:
    """The other conversation's request has brought `ASKED`, and a script can read the sandbox's session key."""
    key = context.vault.decrypt(row(context, Sandbox, sandbox_id).session_key)
    server.replies = {script: Reply(2, None, f"no good: {' '.join((*QUOTED, key))}")}
    task_id = request_start(context, user, sandbox_id, secrets={}, selected_repository="acme/app")
    start_conversation(context, task_id)
    assert "no good: ******" in (task_of(context, task_id).detail or "")
    assert_hidden(context, caplog, key)
    assert conversation.sandbox_id == sandbox_id


@pytest.mark.parametrize("status", [422, 500])
def test_init_of_a_warm_sandbox_redacts_secrets_and_its_keys(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    warm_id = warm(context)
    reconcile(context, warm_id)
    assert claim(context, user) == warm_id
    found = row(context, Sandbox, warm_id)
    assert found.boot_key is not None
    keys = [context.vault.decrypt(key) for key in (found.session_key, found.boot_key)]
    keys.append(init_config(keys[0], node_id="", webhook_url="")["secret_key"])
    server_of(engine, warm_id).refuse["initialize"] = quoting(status, {*QUOTED, *keys} - {ASKED})
    for _ in range(context.settings.max_attempts):
        reconcile(context, warm_id)
    assert "no good: ******" in (row(context, Sandbox, warm_id).detail or "")
    assert_hidden(context, caplog, *keys)


@pytest.mark.parametrize("error", [MissingKey("no key"), ValueError("damaged")])
def test_text_is_not_shown_while_the_secrets_are_unreadable(
    context: WorkerContext,
    user: ApiUser,
    conversation: Conversation,
    server: FakeAgentServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(known_secrets, "find_in_sandbox", fail)
    server.refuse = {"send_message": quoting(422)}
    add_messages(context, user, conversation.id, "one")
    refresh_conversation(context, conversation.id)
    [message] = pending(context)
    assert HIDDEN_TEXT in (message.refusal or "")
    assert_hidden(context, caplog)


def test_secrets_are_read_for_an_error_only(
    context: WorkerContext, user: ApiUser, conversation: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(known_secrets, "find_in_sandbox")
    add_messages(context, user, conversation.id, "one")
    refresh_conversation(context, conversation.id)
    assert pending(context) == []
