"""Documents of conversations that are too large to be read: a server's grows with each call of a model."""

import pytest

from shared.agent_server.limits import MAX_BYTES
from shared.clock import now
from shared.models import Conversation, Sandbox
from shared.states import Desired
from tests.factories import ApiUser, make_conversation, make_event
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.conversation import FakeConversation
from tests.worker.conversations.message_delivery.messages import add_messages, received_texts
from tests.worker.scenarios import assert_at_rest, change, deliver, row, set_desired
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.sandboxes.reconciler import reconcile


@pytest.fixture
def conversation(context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> Conversation:
    columns = {"execution_status": "running", "execution_status_at": now()}
    return make_conversation(context.database, user, sandbox, title_settled=True, **columns)


@pytest.fixture
def talk(server: FakeAgentServer, conversation: Conversation) -> FakeConversation:
    """The agent server's copy of the conversation, after thousands of calls of its model."""
    return server.add(conversation.id, execution_status="running", stats={"costs": "1" * MAX_BYTES})


@pytest.mark.parametrize("desired", [Desired.STOPPED, Desired.PAUSED])
@pytest.mark.parametrize("reported", ["paused", "running"], ids=["reported", "frozen before its report"])
def test_running_agent_is_interrupted_by_a_pause_and_continues_after_the_resume(
    context: WorkerContext, conversation: Conversation, talk: FakeConversation, desired: Desired, reported: str
) -> None:
    set_desired(context, conversation.sandbox_id, desired)
    reconcile(context, conversation.sandbox_id)
    assert talk.execution_status == "paused"
    change(context, Conversation, conversation.id, execution_status=reported)
    set_desired(context, conversation.sandbox_id, Desired.RUNNING)
    reconcile(context, conversation.sandbox_id)
    deliver(context)
    assert talk.execution_status == "running"
    found = row(context, Conversation, conversation.id)
    assert not found.awaits_sandbox
    assert_at_rest(found)


@pytest.mark.usefixtures("talk")
def test_title_is_requested_once(context: WorkerContext, conversation: Conversation, server: FakeAgentServer) -> None:
    change(context, Conversation, conversation.id, title_settled=False, execution_status="idle", due_at=now())
    refresh_conversation(context, conversation.id)
    assert_at_rest(row(context, Conversation, conversation.id))
    assert server.calls == ["get_conversation"]


def test_message_is_sent_when_the_agent_has_ended(
    context: WorkerContext, user: ApiUser, conversation: Conversation, talk: FakeConversation
) -> None:
    make_event(context.database, conversation, kind="ActionEvent")  # the events of its end are lost
    talk.execution_status = "finished"
    add_messages(context, user, conversation.id, "one")
    refresh_conversation(context, conversation.id)
    assert received_texts(talk) == ["one"]
