"""While a tool of the agent runs, its server takes no message. It takes those that were sent when the tool is over.

So it does while it condenses the conversation, which no event shows.
"""

import httpx
import pytest

from shared.clock import after, now
from shared.conversations import pending_messages
from shared.models import Conversation
from tests.factories import ApiUser, make_event
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.conversation import FakeConversation
from tests.worker.conversations.message_delivery.messages import (
    add_messages,
    assert_done,
    content,
    pending,
    received_texts,
)
from tests.worker.scenarios import change, row
from worker.context import WorkerContext
from worker.conversations.message_delivery import BUSY_SECONDS
from worker.conversations.refresh import refresh_conversation

LATE = {"role": "user", "content": content("one"), "run": True}


@pytest.fixture(autouse=True)
def _running(fake: FakeConversation) -> None:
    fake.set_status("running")


def begin_tool(context: WorkerContext, conversation: Conversation) -> None:
    body = {"id": "call", "kind": "ActionEvent", "tool_call_id": "tool"}
    make_event(context.database, conversation, id="call", kind="ActionEvent", body=body)


def end_tool(context: WorkerContext, conversation: Conversation) -> None:
    body = {"id": "result", "kind": "ObservationEvent", "action_id": "call"}
    make_event(context.database, conversation, id="result", kind="ObservationEvent", body=body)


def retry(context: WorkerContext, conversation: Conversation) -> None:
    assert row(context, Conversation, conversation.id).due_at is not None
    change(context, Conversation, conversation.id, due_at=now())
    refresh_conversation(context, conversation.id)


def test_message_is_sent_when_the_tool_has_ended(
    context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation, server: FakeAgentServer
) -> None:
    begin_tool(context, conversation)
    add_messages(context, user, conversation.id, "one", "two")
    refresh_conversation(context, conversation.id)
    found = row(context, Conversation, conversation.id)
    assert (received_texts(fake), server.calls.count("send_message"), found.attempt) == ([], 0, 0)
    assert found.due_at is not None
    assert (found.due_at - now()).total_seconds() <= BUSY_SECONDS
    end_tool(context, conversation)
    retry(context, conversation)
    assert received_texts(fake) == ["one", "two"]
    assert_done(context, conversation.id)


def test_message_sent_just_before_the_tool_began_is_not_resent(
    context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation, server: FakeAgentServer
) -> None:
    def begin(method: str) -> None:
        if method == "send_message":
            begin_tool(context, conversation)
            server.before = lambda _method: None
            raise httpx.ReadTimeout("the tool runs")

    server.before = begin
    add_messages(context, user, conversation.id, "one")
    refresh_conversation(context, conversation.id)
    for _ in range(3):
        retry(context, conversation)
    assert (received_texts(fake), len(pending(context))) == ([], 1)
    fake.take(LATE)
    end_tool(context, conversation)
    retry(context, conversation)
    assert received_texts(fake) == ["one"]
    assert_done(context, conversation.id)


def test_lost_message_is_not_mistaken_for_an_earlier_one_with_the_same_text(
    context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation
) -> None:
    """A message of `send-message` waits in the server's memory, and is lost with it before the tool has ended."""
    fake.take(LATE)
    make_event(context.database, conversation, id=fake.events[-1]["id"], body=fake.events[-1])
    begin_tool(context, conversation)
    with context.database.transaction() as session:
        row_id, due_at = conversation.id, after(context.shared.republish_seconds)
        pending_messages.add_sent(session, row_id, user.id, content("one"), sent_at=now(), due_at=due_at)
    refresh_conversation(context, conversation.id)
    assert (received_texts(fake), len(pending(context))) == (["one"], 1)
    end_tool(context, conversation)
    retry(context, conversation)
    assert received_texts(fake) == ["one", "one"]
    assert_done(context, conversation.id)


def test_message_that_waits_for_a_condensation_is_not_sent_again(
    context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation, server: FakeAgentServer
) -> None:
    def condense(method: str) -> None:
        if method in ("send_message", "await_messages"):
            raise httpx.ReadTimeout("the conversation is locked")

    def end(method: str) -> None:
        if method == "await_messages":
            fake.take(LATE)

    server.before = condense
    add_messages(context, user, conversation.id, "one")
    refresh_conversation(context, conversation.id)
    for _ in range(3):
        retry(context, conversation)
    assert (server.calls.count("send_message"), len(pending(context))) == (1, 1)
    server.before = end
    retry(context, conversation)
    assert (received_texts(fake), server.calls.count("send_message")) == (["one"], 1)
    assert_done(context, conversation.id)


def test_message_is_sent_again_to_a_server_that_does_not_know_how_to_wait(
    context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation, server: FakeAgentServer
) -> None:
    def fail(method: str) -> None:
        if method == "send_message":
            raise httpx.ConnectError("no connection")

    server.refuse["await_messages"] = httpx.Response(404)
    server.before = fail
    add_messages(context, user, conversation.id, "one")
    refresh_conversation(context, conversation.id)
    server.before = lambda _method: None
    retry(context, conversation)
    assert received_texts(fake) == ["one"]
    assert_done(context, conversation.id)


@pytest.mark.parametrize("status", ["paused", "error", "finished"])
def test_message_is_sent_to_an_agent_whose_tool_was_interrupted(
    context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation, status: str
) -> None:
    begin_tool(context, conversation)
    fake.set_status(status)
    add_messages(context, user, conversation.id, "one")
    refresh_conversation(context, conversation.id)
    assert received_texts(fake) == ["one"]
    assert_done(context, conversation.id)
