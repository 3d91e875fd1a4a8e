"""A conversation's message that is larger than any pending one can be: the delivery reads no further, and continues."""

import pytest

from shared.clock import now
from shared.models import Conversation
from tests.factories import ApiUser
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.conversation import FakeConversation
from tests.worker.conversations.message_delivery.messages import add_messages, assert_done, content, received_texts
from tests.worker.conversations.message_delivery.test_no_duplicates import die
from tests.worker.scenarios import another, change
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation

LARGE = "x" * (6 * 1024 * 1024)


@pytest.fixture(autouse=True)
def _large_message(fake: FakeConversation) -> None:
    fake.take({"role": "user", "content": content(LARGE)})


def test_messages_after_a_large_one_are_delivered(
    context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation
) -> None:
    add_messages(context, user, conversation.id, "one", "two")
    refresh_conversation(context, conversation.id)
    assert received_texts(fake) == [LARGE, "one", "two"]
    assert_done(context, conversation.id)


@pytest.mark.parametrize("taken", [True, False])
def test_message_has_no_duplicate_after_a_large_one(
    context: WorkerContext,
    user: ApiUser,
    conversation: Conversation,
    fake: FakeConversation,
    server: FakeAgentServer,
    monkeypatch: pytest.MonkeyPatch,
    *,
    taken: bool,
) -> None:
    monkeypatch.setattr("worker.conversations.message_delivery.LATE_SECONDS", 0.0)
    add_messages(context, user, conversation.id, "one")
    setattr(server, "after" if taken else "before", lambda method: die() if method == "send_message" else None)
    with pytest.raises(SystemExit):
        refresh_conversation(context, conversation.id)
    server.before = server.after = lambda _method: None
    change(context, Conversation, conversation.id, lease_until=now())
    refresh_conversation(another(context), conversation.id)
    assert received_texts(fake) == [LARGE, "one"]
    assert_done(context, conversation.id)
