"""An agent that a pause interrupts at the end of a delivery continues after the resume."""

from shared.conversations import queries as conversation_queries
from shared.models import Conversation, Sandbox
from shared.states import Desired
from tests.factories import Person
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.conversation import FakeConversation
from tests.worker.conversations.message_delivery.messages import assert_done, said, say
from tests.worker.scenes import deliver, row, set_desired
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.sandboxes.reconciler import reconcile


def test_end_of_a_delivery_leaves_the_mark_of_a_pause(
    context: WorkerContext,
    user: Person,
    sandbox: Sandbox,
    conversation: Conversation,
    talk: FakeConversation,
    server: FakeAgentServer,
) -> None:
    say(context, user, conversation.id, "one")
    server.after = lambda method: begin_pause(context, sandbox, talk) if method == "send_message" else None
    refresh_conversation(context, conversation.id)
    assert row(context, Conversation, conversation.id).awaits_sandbox
    server.after = lambda _method: None
    reconcile(context, sandbox.id)
    assert talk.execution_status == "paused"
    set_desired(context, sandbox.id, Desired.RUNNING)
    reconcile(context, sandbox.id)
    deliver(context)
    assert said(talk) == ["one"]
    assert talk.execution_status == "running"
    assert_done(context, conversation.id)


def begin_pause(context: WorkerContext, sandbox: Sandbox, talk: FakeConversation) -> None:
    """Request a pause, and act as its worker up to the interruption."""
    set_desired(context, sandbox.id, Desired.STOPPED)
    with context.database.transaction() as session:
        conversation_queries.continue_later(session, session.get_one(Sandbox, sandbox.id), [talk.id])
    talk.interrupt()
