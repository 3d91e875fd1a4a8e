"""Pauses and deletions during a delivery: the remaining work is done when the sandbox runs next."""

from typing import Any

import pytest

from shared.clock import now
from shared.conversations import deletion as conversation_deletion
from shared.conversations import queries as conversation_queries
from shared.models import Conversation, Sandbox
from shared.states import Desired, Reason
from tests.factories import ApiUser, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.conversation import FakeConversation
from tests.fakes.engine import FakeEngine
from tests.worker.conversations.message_delivery.messages import add_messages, assert_done, received_texts
from tests.worker.scenarios import change, deliver, row, set_desired
from worker.context import WorkerContext
from worker.conversations import refresh
from worker.conversations.deletion import delete_from_agent_server
from worker.conversations.refresh import refresh_conversation
from worker.loops.resync import resync
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


def test_end_of_a_delivery_keeps_the_flag_of_a_pause(
    context: WorkerContext,
    user: ApiUser,
    sandbox: Sandbox,
    conversation: Conversation,
    fake: FakeConversation,
    server: FakeAgentServer,
) -> None:
    add_messages(context, user, conversation.id, "one")
    server.after = lambda method: begin_pause(context, sandbox, fake) if method == "send_message" else None
    refresh_conversation(context, conversation.id)
    assert row(context, Conversation, conversation.id).awaits_sandbox
    server.after = lambda _method: None
    reconcile(context, sandbox.id)
    assert fake.execution_status == "paused"
    set_desired(context, sandbox.id, Desired.RUNNING)
    reconcile(context, sandbox.id)
    deliver(context)
    assert received_texts(fake) == ["one"]
    assert fake.execution_status == "running"
    assert_done(context, conversation.id)


def test_delivery_in_a_sandbox_that_was_resumed_outside_is_complete(
    context: WorkerContext,
    engine: FakeEngine,
    user: ApiUser,
    sandbox: Sandbox,
    conversation: Conversation,
    fake: FakeConversation,
) -> None:
    """Otherwise the next refresh would continue an agent that its user has interrupted since."""
    set_desired(context, sandbox.id, Desired.PAUSED)
    reconcile(context, sandbox.id)
    engine.unpause(container_name(sandbox.id))
    resync(context)
    deliver(context)
    assert row(context, Sandbox, sandbox.id).reason == Reason.RESUMED_OUTSIDE
    add_messages(context, user, conversation.id, "one")
    refresh_conversation(context, conversation.id)
    assert_done(context, conversation.id)
    fake.interrupt()
    change(context, Conversation, conversation.id, due_at=now())
    refresh_conversation(context, conversation.id)
    assert (received_texts(fake), fake.execution_status) == (["one"], "paused")


def begin_pause(context: WorkerContext, sandbox: Sandbox, fake: FakeConversation) -> None:
    """Request a pause, and do what a worker does for it, up to the interruption of the agent."""
    set_desired(context, sandbox.id, Desired.STOPPED)
    with context.database.transaction() as session:
        conversation_queries.continue_later(session, session.get_one(Sandbox, sandbox.id), [fake.id])
    fake.interrupt()


def test_conversation_that_is_deleted_during_a_delivery_is_deleted_on_its_server_after_a_pause(
    context: WorkerContext,
    user: ApiUser,
    sandbox: Sandbox,
    conversation: Conversation,
    fake: FakeConversation,
    server: FakeAgentServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_conversation(context.database, user, sandbox)  # the sandbox stays
    add_messages(context, user, conversation.id, "one")

    def delete(method: str) -> None:
        if method == "send_message":
            fake.execution_status = "finished"
            with context.database.transaction() as session:
                conversation_deletion.delete_conversation(session, conversation.id, user.id, due_at=now())

    server.after = delete

    def pause_and_delete(*row: Any) -> None:
        monkeypatch.undo()
        set_desired(context, sandbox.id, Desired.PAUSED)
        reconcile(context, sandbox.id)
        delete_from_agent_server(*row)

    monkeypatch.setattr(refresh, "delete_from_agent_server", pause_and_delete)
    refresh_conversation(context, conversation.id)
    server.after = lambda _method: None
    assert conversation.id in server.conversations
    set_desired(context, sandbox.id, Desired.RUNNING)
    reconcile(context, sandbox.id)
    deliver(context)
    assert conversation.id not in server.conversations
    assert_done(context, conversation.id)
