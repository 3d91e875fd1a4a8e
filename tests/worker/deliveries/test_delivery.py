"""What was said while an agent could not hear it is told: in order, once, whoever dies and whatever is paused."""

import time
from typing import Any

import httpx
import pytest
from sqlmodel import select

from shared.clock import after, now
from shared.models import Conversation, Node, PendingMessage, Sandbox, StartTask
from shared.states import Desired, Stage
from shared.store import deletions, pending_messages
from tests.factories import Person, make_conversation
from tests.fakes.agent_server import FakeAgentServer, FakeConversation
from tests.fakes.engine import FakeEngine
from tests.worker.scenes import (
    another,
    ask,
    assert_at_rest,
    change,
    configure,
    deliver,
    punctuated,
    row,
    running,
    server_of,
    task_of,
    wish,
)
from worker import deliveries
from worker.converge import converge
from worker.parts import Parts
from worker.refresh import refresh_conversation
from worker.starts import start_conversation
from worker.sweep import sweep

MOST_POINTS = 80


@pytest.fixture(autouse=True)
def _no_waiting(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "LATE_SECONDS", 0)
    change(parts, Node, parts.settings.node, heartbeat_at=after(600))


@pytest.fixture
def sandbox(parts: Parts, user: Person) -> Sandbox:
    return row(parts, Sandbox, running(parts, user))


@pytest.fixture
def server(engine: FakeEngine, sandbox: Sandbox) -> FakeAgentServer:
    return server_of(engine, sandbox.id)


@pytest.fixture
def conversation(parts: Parts, user: Person, sandbox: Sandbox) -> Conversation:
    return make_conversation(parts.database, user, sandbox, title_settled=True)


@pytest.fixture
def talk(server: FakeAgentServer, conversation: Conversation) -> FakeConversation:
    return server.add(conversation.id)


def content(text: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text, "cache_prompt": False}]


def say(parts: Parts, user: Person, conversation_id: str, *texts: str) -> None:
    """As the API does; the jobs are lost."""
    for text in texts:
        with parts.database.transaction() as session:
            pending_messages.add(
                session, conversation_id, user.id, content(text), due_at=after(parts.shared.republish_seconds)
            )


def pending(parts: Parts) -> list[PendingMessage]:
    with parts.database.reading() as session:
        return list(session.exec(select(PendingMessage)).all())


def said(talk: FakeConversation) -> list[str]:
    return [message["content"][0]["text"] for message in talk.messages]


def assert_done(parts: Parts, conversation_id: str) -> None:
    found = row(parts, Conversation, conversation_id)
    assert_at_rest(found)
    assert not found.awaits_sandbox
    assert pending(parts) == []


class TestWhileTheSandboxRuns:
    def test_they_are_told_in_order(
        self, parts: Parts, user: Person, conversation: Conversation, talk: FakeConversation
    ) -> None:
        say(parts, user, conversation.id, "one", "two", "two", "three")
        refresh_conversation(parts, conversation.id)
        assert said(talk) == ["one", "two", "two", "three"]
        assert {message["run"] for message in talk.messages} == {True}
        assert_done(parts, conversation.id)

    def test_by_the_sweep_if_the_message_to_the_worker_is_lost(
        self, parts: Parts, user: Person, conversation: Conversation, talk: FakeConversation
    ) -> None:
        say(parts, user, conversation.id, "one")
        change(parts, Conversation, conversation.id, due_at=now())
        sweep(parts)
        deliver(parts)
        assert said(talk) == ["one"]

    def test_one_that_is_said_meanwhile_is_told_too(
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

    def test_a_refusal_is_kept_and_holds_up_nobody(
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


class TestOnce:
    def test_defect_37_whoever_dies(
        self, parts: Parts, user: Person, sandbox: Sandbox, server: FakeAgentServer
    ) -> None:
        died = 0
        for at in range(MOST_POINTS):
            conversation = make_conversation(parts.database, user, sandbox, title_settled=True)
            talk = server.add(conversation.id)
            say(parts, user, conversation.id, "one", "one", "two")
            working, database = punctuated(parts, at, die)
            server.before = server.after = lambda _method, point=database.point: point()  # type: ignore[misc]
            try:
                refresh_conversation(working, conversation.id)
            except SystemExit:
                died += 1
            server.before = server.after = lambda _method: None
            if row(parts, Conversation, conversation.id).lease_until is not None:
                change(parts, Conversation, conversation.id, lease_until=now())
            refresh_conversation(another(parts), conversation.id)
            assert said(talk) == ["one", "one", "two"], at
            assert_done(parts, conversation.id)
            if database.passed <= at:
                break
        assert 25 < died < MOST_POINTS

    @pytest.mark.parametrize("taken", [True, False])
    def test_defect_37_an_answer_that_never_came(
        self,
        parts: Parts,
        user: Person,
        conversation: Conversation,
        talk: FakeConversation,
        server: FakeAgentServer,
        *,
        taken: bool,
    ) -> None:
        def fail(method: str) -> None:
            if method == "send_message":
                raise httpx.ReadTimeout("late")

        setattr(server, "after" if taken else "before", fail)
        say(parts, user, conversation.id, "one")
        refresh_conversation(parts, conversation.id)
        assert row(parts, Conversation, conversation.id).due_at is not None
        server.before = server.after = lambda _method: None
        refresh_conversation(parts, conversation.id)
        assert said(talk) == ["one"]
        assert talk.execution_status == "running"
        assert_done(parts, conversation.id)

    def test_one_that_comes_late(
        self,
        parts: Parts,
        user: Person,
        conversation: Conversation,
        talk: FakeConversation,
        server: FakeAgentServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Sent by a worker that died at once, or before the sandbox was frozen: it is taken after we have looked."""
        say(parts, user, conversation.id, "one")
        server.before = lambda method: die() if method == "send_message" else None
        with pytest.raises(SystemExit):
            refresh_conversation(parts, conversation.id)
        server.before = lambda _method: None
        change(parts, Conversation, conversation.id, lease_until=now())
        late = {"role": "user", "content": content("one"), "run": True}
        monkeypatch.setattr(time, "sleep", lambda _seconds: talk.take(late))
        refresh_conversation(another(parts), conversation.id)
        assert said(talk) == ["one"]

    def test_the_same_words_of_before_are_not_taken_for_it(
        self, parts: Parts, user: Person, conversation: Conversation, talk: FakeConversation, server: FakeAgentServer
    ) -> None:
        talk.take({"role": "user", "content": content("one"), "run": True})
        say(parts, user, conversation.id, "one")
        server.before = lambda method: die() if method == "send_message" else None
        with pytest.raises(SystemExit):
            refresh_conversation(parts, conversation.id)
        server.before = lambda _method: None
        change(parts, Conversation, conversation.id, lease_until=now())
        refresh_conversation(another(parts), conversation.id)
        assert said(talk) == ["one", "one"]


class TestWhileItDoesNot:
    @pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
    def test_defect_37_they_wait_until_it_runs(
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

    def test_nobody_is_left_once_it_is_deleted(
        self, parts: Parts, user: Person, sandbox: Sandbox, conversation: Conversation, talk: FakeConversation
    ) -> None:
        say(parts, user, conversation.id, "one")
        wish(parts, sandbox.id, Desired.DELETED)
        refresh_conversation(parts, conversation.id)
        assert said(talk) == []
        assert_done(parts, conversation.id)

    def test_nor_once_the_conversation_is(
        self, parts: Parts, user: Person, sandbox: Sandbox, conversation: Conversation, talk: FakeConversation
    ) -> None:
        make_conversation(parts.database, user, sandbox)
        say(parts, user, conversation.id, "one")
        with parts.database.transaction() as session:
            deletions.delete_conversation(session, conversation.id, user.id, due_at=now())
        refresh_conversation(parts, conversation.id)
        assert said(talk) == []
        assert_done(parts, conversation.id)


class TestOfAStart:
    @pytest.fixture(autouse=True)
    def _settings(self, parts: Parts, user: Person) -> None:
        configure(parts, user)

    def test_defect_37_are_told_after_its_first_message_whenever_they_were_said(
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

    def test_that_fails_go_with_it(self, parts: Parts, user: Person, sandbox: Sandbox, server: FakeAgentServer) -> None:
        task_id = ask(parts, user, sandbox.id)
        say(parts, user, task_of(parts, task_id).conversation_id, "two")
        server.refuse = {"create_conversation": httpx.Response(422, json={"detail": "no"})}
        start_conversation(parts, task_id)
        assert row(parts, StartTask, task_id).stage == Stage.ERROR
        assert pending(parts) == []


def die() -> None:
    raise SystemExit
