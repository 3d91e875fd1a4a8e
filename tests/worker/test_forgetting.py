"""Deleted conversations: their agent servers forget them, now or when they run again; nothing is left of them."""

from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest
from sqlmodel import select

from shared.clock import after, now
from shared.jobs import RefreshConversation
from shared.models import Conversation, Event, Sandbox
from shared.states import Desired, Reason, Stage, Status
from shared.store import deletions
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, Person, make_conversation, make_event, make_start_task
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.worker.scenes import (
    another,
    assert_at_rest,
    change,
    deliver,
    punctuated,
    row,
    running,
    server_of,
    wish,
)
from worker.converge import converge
from worker.parts import Parts
from worker.refresh import refresh_conversation
from worker.sweep import sweep

MOST_POINTS = 60


@pytest.fixture
def sandbox(parts: Parts, user: Person) -> Sandbox:
    return row(parts, Sandbox, running(parts, user))


@pytest.fixture
def server(engine: FakeEngine, sandbox: Sandbox) -> FakeAgentServer:
    return server_of(engine, sandbox.id)


@pytest.fixture
def neighbour(parts: Parts, user: Person, sandbox: Sandbox, server: FakeAgentServer) -> Conversation:
    """It keeps the sandbox."""
    found = make_conversation(parts.database, user, sandbox, title_settled=True)
    server.add(found.id)
    return found


@pytest.fixture
def conversation(parts: Parts, user: Person, sandbox: Sandbox, server: FakeAgentServer) -> Conversation:
    found = make_conversation(parts.database, user, sandbox, title_settled=True)
    server.add(found.id)
    make_event(parts.database, found)
    return found


def delete(parts: Parts, user: Person, conversation: Conversation) -> None:
    """As the API does; the jobs are lost."""
    with parts.database.transaction() as session:
        deletions.delete_conversation(session, conversation.id, user.id, due_at=after(parts.shared.republish_seconds))


def pause(parts: Parts, sandbox: Sandbox, desired: Desired = Desired.PAUSED) -> None:
    wish(parts, sandbox.id, desired)
    converge(parts, sandbox.id)


def assert_forgotten(parts: Parts, conversation: Conversation, server: FakeAgentServer) -> None:
    found = row(parts, Conversation, conversation.id)
    assert_at_rest(found)
    assert (found.listed, found.awaits_sandbox) == (False, False)
    assert conversation.id not in server.conversations
    assert_no_events(parts)


def assert_no_events(parts: Parts) -> None:
    with parts.database.reading() as session:
        assert session.exec(select(Event)).all() == []


@pytest.mark.usefixtures("neighbour")
class TestRunningSandbox:
    def test_defect_41_nothing_is_left_of_it(
        self, parts: Parts, user: Person, conversation: Conversation, neighbour: Conversation, server: FakeAgentServer
    ) -> None:
        delete(parts, user, conversation)
        refresh_conversation(parts, conversation.id)
        assert_forgotten(parts, conversation, server)
        assert list(server.conversations) == [neighbour.id]
        calls = list(server.calls)
        refresh_conversation(parts, conversation.id)
        assert server.calls == calls

    def test_conversation_is_forgotten_by_the_sweep_if_the_job_is_lost(
        self, parts: Parts, user: Person, conversation: Conversation, server: FakeAgentServer
    ) -> None:
        delete(parts, user, conversation)
        change(parts, Conversation, conversation.id, due_at=now())
        sweep(parts)
        deliver(parts)
        assert_forgotten(parts, conversation, server)

    def test_conversation_that_the_server_does_not_know_is_forgotten(
        self, parts: Parts, user: Person, conversation: Conversation, server: FakeAgentServer
    ) -> None:
        server.conversations.clear()
        delete(parts, user, conversation)
        refresh_conversation(parts, conversation.id)
        assert_forgotten(parts, conversation, server)

    def test_a_server_that_refuses_is_not_asked_for_ever(
        self, parts: Parts, user: Person, conversation: Conversation, server: FakeAgentServer
    ) -> None:
        server.refuse = {"delete_conversation": httpx.Response(409, json={"detail": "no"})}
        delete(parts, user, conversation)
        refresh_conversation(parts, conversation.id)
        found = row(parts, Conversation, conversation.id)
        assert_at_rest(found)
        assert not found.awaits_sandbox

    def test_a_server_that_does_not_answer_is_asked_again(
        self, parts: Parts, user: Person, conversation: Conversation, server: FakeAgentServer
    ) -> None:
        server.refuse = {"delete_conversation": httpx.Response(503)}
        delete(parts, user, conversation)
        refresh_conversation(parts, conversation.id)
        found = row(parts, Conversation, conversation.id)
        assert found.due_at is not None
        assert_no_events(parts)
        server.refuse = {}
        refresh_conversation(parts, conversation.id)
        assert_forgotten(parts, conversation, server)

    def test_late_create_is_waited_for_after_another_server_has_answered(
        self, parts: Parts, user: Person, sandbox: Sandbox, conversation: Conversation, server: FakeAgentServer
    ) -> None:
        patient = parts.settings.model_copy(update={"first_message_seconds": 0.01})
        parts = replace(parts, settings=patient)
        server.conversations.clear()
        delete(parts, user, conversation)
        make_start_task(parts.database, user, sandbox, conversation_id=conversation.id, stage=Stage.ERROR)
        server.refuse = {"delete_conversation": httpx.Response(401)}
        refresh_conversation(parts, conversation.id)
        server.refuse = {}
        refresh_conversation(parts, conversation.id)
        assert row(parts, Conversation, conversation.id).due_at is not None
        refresh_conversation(parts, conversation.id)
        with parts.database.reading() as session:  # with what was kept of it for that
            assert session.get(Conversation, conversation.id) is None

    def test_events_are_removed_however_many(
        self,
        parts: Parts,
        user: Person,
        conversation: Conversation,
        server: FakeAgentServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(deletions, "EVENTS_AT_ONCE", 2)
        for _ in range(4):
            make_event(parts.database, conversation)
        delete(parts, user, conversation)
        refresh_conversation(parts, conversation.id)
        assert_forgotten(parts, conversation, server)

    def test_a_worker_that_dies_is_followed(
        self, parts: Parts, user: Person, sandbox: Sandbox, server: FakeAgentServer
    ) -> None:
        died = 0
        for at in range(MOST_POINTS):
            conversation = make_conversation(parts.database, user, sandbox, title_settled=True)
            server.add(conversation.id)
            make_event(parts.database, conversation)
            delete(parts, user, conversation)
            working, database = punctuated(parts, at, die)
            server.before = server.after = pointed(database.point)
            try:
                refresh_conversation(working, conversation.id)
            except SystemExit:
                died += 1
            server.before = server.after = lambda _method: None
            if row(parts, Conversation, conversation.id).lease_until is not None:
                change(parts, Conversation, conversation.id, lease_until=now())
            refresh_conversation(another(parts), conversation.id)
            assert_forgotten(parts, conversation, server)
            if database.passed <= at:
                break
        assert 10 <= died < MOST_POINTS


@pytest.mark.usefixtures("neighbour")
class TestPausedSandbox:
    @pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
    def test_conversation_is_forgotten_when_the_sandbox_runs_again(
        self,
        parts: Parts,
        user: Person,
        sandbox: Sandbox,
        conversation: Conversation,
        server: FakeAgentServer,
        publisher: RecordingPublisher,
        desired: Desired,
    ) -> None:
        pause(parts, sandbox, desired)
        delete(parts, user, conversation)
        refresh_conversation(parts, conversation.id)
        waiting = row(parts, Conversation, conversation.id)
        assert_at_rest(waiting)
        assert waiting.awaits_sandbox
        assert_no_events(parts)  # these need no sandbox
        publisher.jobs.clear()
        wish(parts, sandbox.id, Desired.RUNNING)
        converge(parts, sandbox.id)
        assert RefreshConversation(conversation.id, NODE_ID) in publisher.jobs
        deliver(parts)
        assert_forgotten(parts, conversation, server)

    def test_conversation_is_not_asked_about_when_the_sandbox_is_deleted(
        self, parts: Parts, user: Person, sandbox: Sandbox, conversation: Conversation, publisher: RecordingPublisher
    ) -> None:
        pause(parts, sandbox)
        delete(parts, user, conversation)
        refresh_conversation(parts, conversation.id)
        publisher.jobs.clear()
        wish(parts, sandbox.id, Desired.DELETED)
        converge(parts, sandbox.id)
        deliver(parts)
        found = row(parts, Conversation, conversation.id)
        assert_at_rest(found)
        assert not found.awaits_sandbox

    def test_a_sandbox_in_error_is_not_asked(
        self, parts: Parts, user: Person, sandbox: Sandbox, conversation: Conversation, server: FakeAgentServer
    ) -> None:
        change(parts, Sandbox, sandbox.id, status=Status.ERROR, reason=Reason.EXIT_CODE)
        delete(parts, user, conversation)
        server.calls.clear()
        refresh_conversation(parts, conversation.id)
        assert server.calls == []
        assert row(parts, Conversation, conversation.id).awaits_sandbox

    def test_conversation_in_a_sandbox_without_a_node_is_any_worker_s(
        self, parts: Parts, user: Person, sandbox: Sandbox, conversation: Conversation
    ) -> None:
        """A node that was given up leaves its sandboxes so."""
        delete(parts, user, conversation)
        change(parts, Sandbox, sandbox.id, node_id=None, status=Status.DELETED, desired=Desired.DELETED, due_at=None)
        change(parts, Conversation, conversation.id, due_at=now())
        sweep(parts)
        deliver(parts)
        assert_no_events(parts)
        assert not row(parts, Conversation, conversation.id).awaits_sandbox


def test_the_last_one_takes_its_sandbox_along(
    parts: Parts, user: Person, sandbox: Sandbox, conversation: Conversation, server: FakeAgentServer
) -> None:
    change(parts, Sandbox, sandbox.id, goes_with_conversations=True)
    delete(parts, user, conversation)
    refresh_conversation(parts, conversation.id)
    assert_at_rest(row(parts, Conversation, conversation.id))
    assert_no_events(parts)
    assert "delete_conversation" not in server.calls
    converge(parts, sandbox.id)
    assert row(parts, Sandbox, sandbox.id).status == Status.DELETED


def die() -> None:
    raise SystemExit


def pointed(point: Callable[[], None]) -> Callable[[str], None]:
    return lambda _method: point()
