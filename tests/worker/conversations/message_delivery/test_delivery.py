"""Pending messages: delivered in order, as soon as the sandbox runs."""

from functools import partial

import httpx
import pytest

from shared.clock import now
from shared.conversations import deletion as conversation_deletion
from shared.models import Conversation, Sandbox, StartTask
from shared.states import Desired, Stage
from tests.factories import ApiUser, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.conversation import FakeConversation
from tests.worker.conversations.message_delivery.messages import (
    MAX_POINTS,
    add_messages,
    assert_done,
    pending,
    received_texts,
)
from tests.worker.scenarios import (
    assert_at_rest,
    change,
    configure,
    deliver,
    hooked_context,
    request_start,
    row,
    set_desired,
    task_of,
)
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start import start_conversation
from worker.loops.sweep import sweep
from worker.sandboxes.reconciler import reconcile


class TestRunningSandbox:
    def test_messages_are_delivered_in_order(
        self, context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation
    ) -> None:
        add_messages(context, user, conversation.id, "one", "two", "two", "three")
        refresh_conversation(context, conversation.id)
        assert received_texts(fake) == ["one", "two", "two", "three"]
        assert {message["run"] for message in fake.messages} == {True}
        assert_done(context, conversation.id)

    def test_messages_are_delivered_by_the_sweep_if_the_job_is_lost(
        self, context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation
    ) -> None:
        add_messages(context, user, conversation.id, "one")
        change(context, Conversation, conversation.id, due_at=now())
        sweep(context)
        deliver(context)
        assert received_texts(fake) == ["one"]

    def test_message_during_a_delivery_is_delivered(
        self, context: WorkerContext, user: ApiUser, conversation: Conversation, fake: FakeConversation
    ) -> None:
        for at in range(MAX_POINTS):
            fake.messages.clear()
            add_messages(context, user, conversation.id, "one")
            working, database = hooked_context(context, at, lambda: add_messages(context, user, conversation.id, "two"))
            refresh_conversation(working, conversation.id)
            deliver(context)
            refresh_conversation(context, conversation.id)
            if database.passed <= at:
                break
            assert received_texts(fake) == ["one", "two"]
            assert_done(context, conversation.id)
        assert 10 < at < MAX_POINTS - 1

    def test_message_that_is_refused_is_kept_and_blocks_no_other(
        self,
        context: WorkerContext,
        user: ApiUser,
        conversation: Conversation,
        fake: FakeConversation,
        server: FakeAgentServer,
    ) -> None:
        server.refuse = {"send_message": httpx.Response(422, json={"detail": "no such thing"})}
        add_messages(context, user, conversation.id, "one")
        refresh_conversation(context, conversation.id)
        [message] = pending(context)
        assert "no such thing" in str(message.refusal)
        assert_at_rest(row(context, Conversation, conversation.id))
        server.refuse = {}
        add_messages(context, user, conversation.id, "two")
        refresh_conversation(context, conversation.id)
        assert received_texts(fake) == ["two"]
        assert [left.id for left in pending(context)] == [message.id]

    def test_messages_to_a_conversation_that_the_server_does_not_know_are_refused(
        self, context: WorkerContext, user: ApiUser, conversation: Conversation, server: FakeAgentServer
    ) -> None:
        assert server.conversations == {}
        add_messages(context, user, conversation.id, "one")
        refresh_conversation(context, conversation.id)
        assert pending(context)[0].refusal is not None


class TestPausedSandbox:
    @pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
    def test_defect_37_messages_wait_until_the_sandbox_runs(
        self,
        context: WorkerContext,
        user: ApiUser,
        sandbox: Sandbox,
        conversation: Conversation,
        fake: FakeConversation,
        desired: Desired,
    ) -> None:
        set_desired(context, sandbox.id, desired)
        reconcile(context, sandbox.id)
        add_messages(context, user, conversation.id, "one", "two")
        refresh_conversation(context, conversation.id)
        assert_at_rest(row(context, Conversation, conversation.id))
        assert received_texts(fake) == []
        set_desired(context, sandbox.id, Desired.RUNNING)
        reconcile(context, sandbox.id)
        deliver(context)
        assert received_texts(fake) == ["one", "two"]
        assert_done(context, conversation.id)

    def test_messages_end_with_their_sandbox(
        self,
        context: WorkerContext,
        user: ApiUser,
        sandbox: Sandbox,
        conversation: Conversation,
        fake: FakeConversation,
    ) -> None:
        add_messages(context, user, conversation.id, "one")
        set_desired(context, sandbox.id, Desired.DELETED)
        refresh_conversation(context, conversation.id)
        assert received_texts(fake) == []
        assert_done(context, conversation.id)

    def test_messages_end_with_their_conversation(
        self,
        context: WorkerContext,
        user: ApiUser,
        sandbox: Sandbox,
        conversation: Conversation,
        fake: FakeConversation,
    ) -> None:
        make_conversation(context.database, user, sandbox)
        add_messages(context, user, conversation.id, "one")
        with context.database.transaction() as session:
            conversation_deletion.delete_conversation(session, conversation.id, user.id, due_at=now())
        refresh_conversation(context, conversation.id)
        assert received_texts(fake) == []
        assert_done(context, conversation.id)


class TestMessagesOfAStart:
    @pytest.fixture(autouse=True)
    def _settings(self, context: WorkerContext, user: ApiUser) -> None:
        configure(context, user)

    def test_defect_37_messages_of_a_start_follow_its_first_message(
        self, context: WorkerContext, user: ApiUser, sandbox: Sandbox, server: FakeAgentServer
    ) -> None:
        """A user sends a message at each point of a start; none is lost."""
        for at in range(MAX_POINTS):
            task_id = request_start(context, user, sandbox.id)
            conversation_id = task_of(context, task_id).conversation_id
            send = partial(add_messages, context, user, conversation_id, "two")
            working, database = hooked_context(context, at, send)
            start_conversation(working, task_id)
            deliver(context)
            change(context, Conversation, conversation_id, title_settled=True)
            refresh_conversation(context, conversation_id)
            assert task_of(context, task_id).stage == Stage.READY
            texts = received_texts(server.get(conversation_id))
            if database.passed <= at:
                break
            assert texts == ["Hello", "two"], at
            assert_done(context, conversation_id)
        assert 15 < at < MAX_POINTS - 1

    def test_messages_of_a_start_that_fails_end_with_it(
        self, context: WorkerContext, user: ApiUser, sandbox: Sandbox, server: FakeAgentServer
    ) -> None:
        task_id = request_start(context, user, sandbox.id)
        add_messages(context, user, task_of(context, task_id).conversation_id, "two")
        server.refuse = {"create_conversation": httpx.Response(422, json={"detail": "no"})}
        start_conversation(context, task_id)
        assert row(context, StartTask, task_id).stage == Stage.ERROR
        assert pending(context) == []
