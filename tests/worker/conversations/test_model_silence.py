"""A silent model: the conversation shows the silence within a minute, and until the next event."""

from datetime import datetime
from typing import Any

import httpx
import pytest

from shared.clock import after, now
from shared.models import Conversation, Sandbox
from tests.api.agent_reports import event_report
from tests.factories import ApiUser, make_conversation, make_event
from tests.fakes.agent_server import FakeAgentServer
from tests.worker.conversations.message_delivery.messages import add_messages
from tests.worker.scenarios import assert_at_rest, change, row
from worker.context import WorkerContext
from worker.conversations.model_silence import SILENT_SECONDS
from worker.conversations.refresh import refresh_conversation

Events = list[dict[str, Any]]
CALL = event_report("ActionEvent", tool_call_id="call_1")
ASKED = [event_report("MessageEvent")]
AT_WORK = [*ASKED, CALL]
AT_ONE_OF_TWO = [*ASKED, CALL, event_report("ActionEvent", tool_call_id="call_2")]
DONE = [*AT_WORK, event_report("ObservationEvent", action_id=CALL["id"])]
HALF_DONE = [*AT_ONE_OF_TWO, event_report("ObservationEvent", action_id=CALL["id"])]
# As if its arguments were too large to be stored.
AT_WORK_WITHOUT_ID = [*ASKED, event_report("ActionEvent")]
AFTER_A_HOOK = [*AT_WORK, event_report("HookExecutionEvent", action_id=CALL["id"])]
FAILED = [*AT_WORK, event_report("AgentErrorEvent", tool_call_id="call_1")]
STATE = [event_report("ConversationStateUpdateEvent", key="stats", value={})]


@pytest.fixture
def conversation(context: WorkerContext, user: ApiUser, sandbox: Sandbox, server: FakeAgentServer) -> Conversation:
    """A conversation whose agent runs according to its last report."""
    made = make_conversation(
        context.database,
        user,
        sandbox,
        due_at=now(),
        title_settled=True,
        execution_status="running",
        execution_status_at=after(-600),
        llm_model="openai/slow",
    )
    server.add(made.id, execution_status="running")
    return made


def store_events(context: WorkerContext, conversation: Conversation, events: Events, seconds: float) -> datetime:
    """Store events, of which the newest is `seconds` old, and return the time of that event."""
    at = after(-seconds)
    for number, event in enumerate(events):
        columns = {"id": f"{event['id']}", "kind": event["kind"], "body": event}
        make_event(context.database, conversation, timestamp=after(-seconds - len(events) + number + 1), **columns)
    return at


def refreshed(context: WorkerContext, conversation: Conversation) -> Conversation:
    refresh_conversation(context, conversation.id)
    return row(context, Conversation, conversation.id)


@pytest.mark.parametrize("events", [ASKED, DONE, FAILED, [*DONE, *STATE]], ids=["asked", "done", "failed", "state"])
def test_model_that_exceeds_its_timeout_is_named(
    context: WorkerContext, conversation: Conversation, events: Events
) -> None:
    store_events(context, conversation, events, SILENT_SECONDS + 2)
    found = refreshed(context, conversation)
    assert found.execution_reason == "model_silent"
    assert str(found.execution_detail).startswith("no answer from the model openai/slow since ")
    assert found.updated_at > conversation.updated_at
    assert_at_rest(found)


def test_silence_is_seen_while_a_message_can_not_be_delivered(
    context: WorkerContext, user: ApiUser, conversation: Conversation, server: FakeAgentServer
) -> None:
    store_events(context, conversation, ASKED, SILENT_SECONDS + 2)
    add_messages(context, user, conversation.id, "one")
    server.refuse = {"send_message": httpx.Response(503)}
    found = refreshed(context, conversation)
    assert (found.execution_reason, found.awaits_sandbox) == ("model_silent", True)


def test_model_within_its_timeout_is_checked_again_later(context: WorkerContext, conversation: Conversation) -> None:
    store_events(context, conversation, ASKED, SILENT_SECONDS - 10)
    found = refreshed(context, conversation)
    assert (found.execution_reason, found.attempt) == (None, 0)
    assert found.due_at is not None
    assert found.due_at <= after(10)


@pytest.mark.parametrize("error", [httpx.ConnectError("refused"), KeyError("title")], ids=["unreachable", "defect"])
def test_title_that_can_not_be_read_ends_no_checks(
    context: WorkerContext, conversation: Conversation, server: FakeAgentServer, error: Exception
) -> None:
    def fail(_method: str) -> None:
        raise error

    server.before = fail
    change(context, Conversation, conversation.id, title_settled=False)
    store_events(context, conversation, ASKED, SILENT_SECONDS - 10)
    for _ in range(context.settings.max_attempts + 1):
        found = refreshed(context, conversation)
        assert found.due_at is not None
        change(context, Conversation, conversation.id, due_at=now())


@pytest.mark.parametrize(
    "events",
    [AT_WORK, HALF_DONE, [*AT_WORK, *STATE], AT_WORK_WITHOUT_ID, AFTER_A_HOOK],
    ids=["one", "one of two", "state", "without an id", "after a hook"],
)
def test_tool_that_takes_long_is_no_silence(context: WorkerContext, conversation: Conversation, events: Events) -> None:
    store_events(context, conversation, events, 600)
    found = refreshed(context, conversation)
    assert found.execution_reason is None
    assert_at_rest(found)


@pytest.mark.parametrize("status", ["idle", "paused", "finished", "error", None])
def test_idle_agent_waits_for_no_model(context: WorkerContext, conversation: Conversation, status: str | None) -> None:
    store_events(context, conversation, ASKED, 600)
    change(context, Conversation, conversation.id, execution_status=status)
    found = refreshed(context, conversation)
    assert found.execution_reason is None
    assert_at_rest(found)


def test_agent_that_began_just_now_has_the_whole_timeout(context: WorkerContext, conversation: Conversation) -> None:
    store_events(context, conversation, ASKED, 600)
    change(context, Conversation, conversation.id, execution_status_at=now())
    found = refreshed(context, conversation)
    assert (found.execution_reason, found.due_at is not None) == (None, True)
