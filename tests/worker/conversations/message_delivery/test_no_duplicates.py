"""A pending message is delivered without a duplicate after a worker's death or a lost response."""

import time

import httpx
import pytest

from shared.clock import after, now
from shared.conversations import pending_messages
from shared.models import Conversation, Sandbox
from tests.factories import ApiUser, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.conversation import FakeConversation
from tests.worker.conversations.message_delivery.messages import (
    MAX_POINTS,
    add_messages,
    assert_done,
    content,
    received_texts,
)
from tests.worker.scenarios import (
    another,
    change,
    hooked_context,
    row,
)
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation


class TestNoDuplicates:
    def test_defect_37_message_has_no_duplicate_after_a_worker_s_death(
        self, context: WorkerContext, user: ApiUser, sandbox: Sandbox, server: FakeAgentServer
    ) -> None:
        died = 0
        for at in range(MAX_POINTS):
            conversation = make_conversation(context.database, user, sandbox, title_settled=True)
            fake = server.add(conversation.id)
            add_messages(context, user, conversation.id, "one", "one", "two")
            working, database = hooked_context(context, at, die)
            server.before = server.after = lambda _method, point=database.point: point()  # type: ignore[misc]
            try:
                refresh_conversation(working, conversation.id)
            except SystemExit:
                died += 1
            server.before = server.after = lambda _method: None
            if row(context, Conversation, conversation.id).lease_until is not None:
                change(context, Conversation, conversation.id, lease_until=now())
            refresh_conversation(another(context), conversation.id)
            assert received_texts(fake) == ["one", "one", "two"], at
            assert_done(context, conversation.id)
            if database.passed <= at:
                break
        assert 25 < died < MAX_POINTS

    @pytest.mark.parametrize("taken", [True, False])
    def test_defect_37_message_has_no_duplicate_after_a_lost_response(
        self,
        context: WorkerContext,
        user: ApiUser,
        conversation: Conversation,
        fake: FakeConversation,
        server: FakeAgentServer,
        *,
        taken: bool,
    ) -> None:
        def fail(method: str) -> None:
            if method == "send_message":
                raise httpx.ReadTimeout("late")

        setattr(server, "after" if taken else "before", fail)
        add_messages(context, user, conversation.id, "one")
        refresh_conversation(context, conversation.id)
        assert row(context, Conversation, conversation.id).due_at is not None
        server.before = server.after = lambda _method: None
        refresh_conversation(context, conversation.id)
        assert received_texts(fake) == ["one"]
        assert fake.execution_status == "running"
        assert_done(context, conversation.id)

    def test_message_that_arrives_late_has_no_duplicate(
        self,
        context: WorkerContext,
        user: ApiUser,
        conversation: Conversation,
        fake: FakeConversation,
        server: FakeAgentServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """The message was sent by a dead worker, or before a pause: the server takes it after the first check."""
        add_messages(context, user, conversation.id, "one")
        server.before = lambda method: die() if method == "send_message" else None
        with pytest.raises(SystemExit):
            refresh_conversation(context, conversation.id)
        server.before = lambda _method: None
        change(context, Conversation, conversation.id, lease_until=now())
        late = {"role": "user", "content": content("one"), "run": True}
        monkeypatch.setattr(time, "sleep", lambda _seconds: fake.take(late))
        refresh_conversation(another(context), conversation.id)
        assert received_texts(fake) == ["one"]

    def test_message_is_not_mistaken_for_an_earlier_one_with_the_same_text(
        self,
        context: WorkerContext,
        user: ApiUser,
        conversation: Conversation,
        fake: FakeConversation,
        server: FakeAgentServer,
    ) -> None:
        fake.take({"role": "user", "content": content("one"), "run": True})
        add_messages(context, user, conversation.id, "one")
        server.before = lambda method: die() if method == "send_message" else None
        with pytest.raises(SystemExit):
            refresh_conversation(context, conversation.id)
        server.before = lambda _method: None
        change(context, Conversation, conversation.id, lease_until=now())
        refresh_conversation(another(context), conversation.id)
        assert received_texts(fake) == ["one", "one"]


def die() -> None:
    raise SystemExit


def test_message_that_the_agent_could_not_process_is_run_later_and_not_resent(
    context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation, server: FakeAgentServer
) -> None:
    fake.take({"role": "user", "content": content("one"), "run": False})
    with context.database.transaction() as session:
        due_at = after(context.shared.republish_seconds)
        pending_messages.add_sent(session, conversation.id, user.id, content("one"), sent_at=None, due_at=due_at)
    server.refuse = {"run": httpx.Response(429, json={"detail": "run limit reached"})}
    refresh_conversation(context, conversation.id)
    assert (received_texts(fake), fake.execution_status) == (["one"], "idle")
    server.refuse = {}
    change(context, Conversation, conversation.id, due_at=now())
    refresh_conversation(context, conversation.id)
    assert (received_texts(fake), fake.execution_status) == (["one"], "running")
    assert_done(context, conversation.id)
