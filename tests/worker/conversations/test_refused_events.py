"""Conversations whose events a quota refuses: a worker reads from their agent servers what no report says."""

from typing import Any

import httpx
import pytest

from shared.agent_server.limits import MAX_BYTES
from shared.clock import after, now
from shared.models import Conversation, Sandbox
from tests.api.agent_reports import stats_report, usage_report
from tests.factories import ApiUser, make_conversation, make_event
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.conversation import FakeConversation
from tests.worker.scenarios import assert_at_rest, change, row
from worker.context import WorkerContext
from worker.conversations.model_silence import SILENT_SECONDS
from worker.conversations.refresh import refresh_conversation

REFUSED = {"execution_reason": "events_refused", "execution_detail": "its newest events are not stored"}


@pytest.fixture
def conversation(context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> Conversation:
    """A conversation whose agent ran according to its last report, and whose model was silent."""
    times = {"due_at": now(), "execution_status_at": after(-600), "updated_at": after(-600)}
    columns: dict[str, Any] = {"title_settled": True, "max_budget": 2.0, "execution_status": "running", **times}
    change(context, Sandbox, sandbox.id, status_changed_at=after(-700))
    made = make_conversation(context.database, user, sandbox, **columns, **REFUSED)
    make_event(context.database, made, timestamp=after(-SILENT_SECONDS - 2))
    return made


@pytest.fixture
def talk(server: FakeAgentServer, conversation: Conversation) -> FakeConversation:
    """The agent server's copy of the conversation."""
    return server.add(conversation.id, execution_status="running")


def refreshed(context: WorkerContext, conversation: Conversation) -> Conversation:
    change(context, Conversation, conversation.id, due_at=now())
    refresh_conversation(context, conversation.id)
    return row(context, Conversation, conversation.id)


@pytest.mark.parametrize("bulk", ["", "1" * MAX_BYTES], ids=["small", "large"])
def test_end_and_cost_are_read(
    context: WorkerContext, conversation: Conversation, talk: FakeConversation, bulk: str
) -> None:
    talk.execution_status, talk.stats = "finished", stats_report(agent=usage_report(1.5, 10)) | {"bulk": bulk}
    found = refreshed(context, conversation)
    assert found.metrics is not None
    assert (found.execution_status, found.metrics["accumulated_cost"]) == ("finished", 1.5)
    assert found.execution_reason == "events_refused"
    assert found.updated_at > conversation.updated_at
    assert_at_rest(found)


def test_agent_over_its_budget_is_interrupted(
    context: WorkerContext, conversation: Conversation, talk: FakeConversation
) -> None:
    talk.stats = stats_report(agent=usage_report(2.0, 10))
    refreshed(context, conversation)
    assert talk.execution_status == "paused"
    assert refreshed(context, conversation).execution_status == "paused"


def test_agent_that_runs_on_changes_nothing_that_is_shown(
    context: WorkerContext, conversation: Conversation, talk: FakeConversation
) -> None:
    talk.body = {"tags": {"a": "a repeated report has another value"}}
    found = refreshed(context, conversation)
    assert (found.execution_status, found.execution_reason) == ("running", "events_refused")
    assert found.updated_at == conversation.updated_at
    assert_at_rest(found)


@pytest.mark.usefixtures("talk")
def test_agent_that_continues_after_an_error_is_seen(context: WorkerContext, conversation: Conversation) -> None:
    """The error has a reason of its own, which the refusal does not replace."""
    change(context, Conversation, conversation.id, execution_status="error", execution_reason="LLMError")
    found = refreshed(context, conversation)
    assert (found.execution_status, found.execution_reason) == ("running", None)


def test_status_that_is_reported_during_the_request_is_kept(
    context: WorkerContext, conversation: Conversation, talk: FakeConversation, server: FakeAgentServer
) -> None:
    def report(_method: str) -> None:
        change(context, Conversation, conversation.id, execution_status="idle", execution_status_at=now())

    talk.execution_status, server.after = "finished", report
    assert refreshed(context, conversation).execution_status == "idle"


@pytest.mark.parametrize("status", [403, 500])
def test_server_that_fails_is_not_asked_again_before_the_next_webhook(
    context: WorkerContext, conversation: Conversation, server: FakeAgentServer, status: int
) -> None:
    server.refuse["get_conversation"] = httpx.Response(status)
    found = refreshed(context, conversation)
    assert (found.execution_status, found.execution_reason) == ("running", "events_refused")
    assert_at_rest(found)
