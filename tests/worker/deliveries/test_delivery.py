"""Pending messages: delivered in order, as soon as the agent can hear them."""

import httpx
import pytest

from shared.clock import now
from shared.models import Conversation, Sandbox, StartTask
from shared.states import Desired, Stage
from shared.store import deletions
from tests.factories import Person, make_conversation
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.conversation import FakeConversation
from tests.worker.deliveries.messages import MOST_POINTS, assert_done, pending, said, say
from tests.worker.scenes import (
    ask,
    assert_at_rest,
    change,
    configure,
    deliver,
    punctuated,
    row,
    task_of,
    wish,
)
from worker.converge import converge
from worker.parts import Parts
from worker.refresh import refresh_conversation
from worker.starts import start_conversation
from worker.sweep import sweep


class TestRunningSandbox:
    def test_messages_are_delivered_in_order(
        self, parts: Parts, user: Person, conversation: Conversation, talk: FakeConversation
    ) -> None:
        say(parts, user, conversation.id, "one", "two", "two", "three")
        refresh_conversation(parts, conversation.id)
        assert said(talk) == ["one", "two", "two", "three"]
        assert {message["run"] for message in talk.messages} == {True}
        assert_done(parts, conversation.id)

    def test_messages_are_delivered_by_the_sweep_if_the_job_is_lost(
        self, parts: Parts, user: Person, conversation: Conversation, talk: FakeConversation
    ) -> None:
        say(parts, user, conversation.id, "one")
        change(parts, Conversation, conversation.id, due_at=now())
        sweep(parts)
        deliver(parts)
        assert said(talk) == ["one"]

    def test_message_said_meanwhile_is_delivered_too(
        self, parts: Parts, user: Person, conversation: Conversation, talk: FakeConversation
    ) -> None:
        for at in range(MOST_POINTS):
            talk.messages.clear()
            say(parts, user, conversation.id, "one")
            working, database = punctuated(parts, at, lambda: say(parts, user, conversation.id, "two"))
            refresh_conversation(working, conversation.id)
            deliver(parts)
            refresh_conversation(parts, conversation.id)
            if database.passed <= at:
                break
            assert said(talk) == ["one", "two"]
            assert_done(parts, conversation.id)
        assert 10 < at < MOST_POINTS - 1

    def test_message_that_is_refused_is_kept_and_holds_up_no_other(
        self,
        parts: Parts,
        user: Person,
        conversation: Conversation,
        talk: FakeConversation,
        server: FakeAgentServer,
    ) -> None:
        server.refuse = {"send_message": httpx.Response(422, json={"detail": "no such thing"})}
        say(parts, user, conversation.id, "one")
        refresh_conversation(parts, conversation.id)
        [message] = pending(parts)
        assert "no such thing" in str(message.refusal)
        assert_at_rest(row(parts, Conversation, conversation.id))
        server.refuse = {}
        say(parts, user, conversation.id, "two")
        refresh_conversation(parts, conversation.id)
        assert said(talk) == ["two"]
        assert [left.id for left in pending(parts)] == [message.id]

    def test_a_conversation_that_the_server_does_not_know(
        self, parts: Parts, user: Person, conversation: Conversation, server: FakeAgentServer
    ) -> None:
        assert server.conversations == {}
        say(parts, user, conversation.id, "one")
        refresh_conversation(parts, conversation.id)
        assert pending(parts)[0].refusal is not None


class TestPausedSandbox:
    @pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
    def test_defect_37_messages_wait_until_the_sandbox_runs(
        self,
        parts: Parts,
        user: Person,
        sandbox: Sandbox,
        conversation: Conversation,
        talk: FakeConversation,
        desired: Desired,
    ) -> None:
        wish(parts, sandbox.id, desired)
        converge(parts, sandbox.id)
        say(parts, user, conversation.id, "one", "two")
        refresh_conversation(parts, conversation.id)
        assert_at_rest(row(parts, Conversation, conversation.id))
        assert said(talk) == []
        wish(parts, sandbox.id, Desired.RUNNING)
        converge(parts, sandbox.id)
        deliver(parts)
        assert said(talk) == ["one", "two"]
        assert_done(parts, conversation.id)

    def test_messages_end_with_their_sandbox(
        self, parts: Parts, user: Person, sandbox: Sandbox, conversation: Conversation, talk: FakeConversation
    ) -> None:
        say(parts, user, conversation.id, "one")
        wish(parts, sandbox.id, Desired.DELETED)
        refresh_conversation(parts, conversation.id)
        assert said(talk) == []
        assert_done(parts, conversation.id)

    def test_messages_end_with_their_conversation(
        self, parts: Parts, user: Person, sandbox: Sandbox, conversation: Conversation, talk: FakeConversation
    ) -> None:
        make_conversation(parts.database, user, sandbox)
        say(parts, user, conversation.id, "one")
        with parts.database.transaction() as session:
            deletions.delete_conversation(session, conversation.id, user.id, due_at=now())
        refresh_conversation(parts, conversation.id)
        assert said(talk) == []
        assert_done(parts, conversation.id)


class TestMessagesOfAStart:
    @pytest.fixture(autouse=True)
    def _settings(self, parts: Parts, user: Person) -> None:
        configure(parts, user)

    def test_defect_37_messages_of_a_start_follow_its_first_message(
        self, parts: Parts, user: Person, sandbox: Sandbox, server: FakeAgentServer
    ) -> None:
        """At each point of a start somebody says something; none of it is lost."""
        for at in range(MOST_POINTS):
            task_id = ask(parts, user, sandbox.id)
            conversation_id = task_of(parts, task_id).conversation_id
            working, database = punctuated(parts, at, lambda subject=conversation_id: say(parts, user, subject, "two"))  # type: ignore[misc]
            start_conversation(working, task_id)
            deliver(parts)
            change(parts, Conversation, conversation_id, title_settled=True)
            refresh_conversation(parts, conversation_id)
            assert task_of(parts, task_id).stage == Stage.READY
            heard = said(server.get(conversation_id))
            if database.passed <= at:
                break
            assert heard == ["Hello", "two"], at
            assert_done(parts, conversation_id)
        assert 15 < at < MOST_POINTS - 1

    def test_messages_of_a_start_that_fails_end_with_it(
        self, parts: Parts, user: Person, sandbox: Sandbox, server: FakeAgentServer
    ) -> None:
        task_id = ask(parts, user, sandbox.id)
        say(parts, user, task_of(parts, task_id).conversation_id, "two")
        server.refuse = {"create_conversation": httpx.Response(422, json={"detail": "no"})}
        start_conversation(parts, task_id)
        assert row(parts, StartTask, task_id).stage == Stage.ERROR
        assert pending(parts) == []
