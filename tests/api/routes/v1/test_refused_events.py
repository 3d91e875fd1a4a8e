"""Webhooks whose events a quota refuses: their reports count, and a worker reads what they do not say."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import time_machine
from fastapi.testclient import TestClient

from api.app import create_app
from api.request.context import Context
from api.routes.v1 import webhooks
from shared.clock import after, now
from shared.db.database import Database
from shared.leasing.limits import MAX_SECONDS
from shared.models import Conversation, Sandbox
from tests.api.agent_reports import event_report, update_report
from tests.factories import session_key_of
from tests.rows import as_stored

Send = Callable[..., int]


@pytest.fixture
def send(context: Context, conversation: Conversation, sandbox: Sandbox) -> Iterator[Send]:
    """A function that sends events of the conversation, of whose owner two events may be stored."""
    settings = context.settings.model_copy(update={"quota_events": 2})
    with TestClient(create_app(replace(context, settings=settings))) as client:

        def send(*reports: dict[str, Any]) -> int:
            url, headers = f"/api/v1/webhooks/events/{conversation.id}", {"X-Session-API-Key": session_key_of(sandbox)}
            return int(client.post(url, json=list(reports), headers=headers).status_code)

        yield send


def test_reports_of_all_parts_of_a_large_webhook_count(
    send: Send, conversation: Conversation, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The quota would admit the last part, without those before it."""
    monkeypatch.setattr(webhooks, "MAX_STORED_AT_ONCE", 3)
    reports = [event_report(after=number) for number in range(3)]
    assert send(*reports, update_report("execution_status", "finished", 4)) == 429
    found = as_stored(database, conversation)
    assert (found.execution_status, found.execution_reason) == ("finished", "events_refused")
    assert send(event_report(), event_report()) == 200, "none of the refused events is stored"


@pytest.mark.parametrize("status", ["idle", "running"])
def test_conversation_is_due_for_a_read_of_its_state(
    send: Send, conversation: Conversation, database: Database, status: str
) -> None:
    with database.transaction() as session:
        session.get_one(Conversation, conversation.id).title_settled = True
    assert send(update_report("execution_status", status)) == 200
    with database.transaction() as session:
        session.get_one(Conversation, conversation.id).due_at = None
    assert send(event_report(), event_report()) == 429
    due_at = as_stored(database, conversation).due_at
    assert due_at is not None
    assert due_at <= after(MAX_SECONDS)


def test_refused_events_are_no_activity(send: Send, sandbox: Sandbox, database: Database) -> None:
    reports = [event_report() for _ in range(3)]
    with time_machine.travel(after(60), tick=False):
        assert send(*reports) == 429
        assert as_stored(database, sandbox).last_active_at == sandbox.last_active_at
        assert send(*reports[:2]) == 200
        assert as_stored(database, sandbox).last_active_at == now()


def test_events_of_an_agent_that_has_failed_are_activity(
    send: Send, conversation: Conversation, sandbox: Sandbox, database: Database
) -> None:
    with database.transaction() as session:
        found = session.get_one(Conversation, conversation.id)
        found.execution_status, found.execution_reason = "error", "LLMAuthenticationError"
    with time_machine.travel(after(60), tick=False):
        assert send(event_report()) == 200
        assert as_stored(database, sandbox).last_active_at == now()


def test_reason_ends_when_the_events_are_stored(send: Send, conversation: Conversation, database: Database) -> None:
    late = [update_report("execution_status", status, at) for at, status in enumerate(("running", "idle", "finished"))]
    assert send(*late) == 429
    assert as_stored(database, conversation).execution_reason == "events_refused"
    assert send(*late[:2]) == 200
    found = as_stored(database, conversation)
    assert (found.execution_status, found.execution_reason) == ("finished", None)
