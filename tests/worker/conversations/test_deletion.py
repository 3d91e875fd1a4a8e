"""Deleted conversations: their copies on agent servers are deleted, now or when the sandboxes run next."""

from collections.abc import Callable
from datetime import datetime, timedelta

import httpx
import pytest
from sqlmodel import select

from shared.clock import after, now
from shared.conversations import deletion as conversation_deletion
from shared.models import Conversation, Event, Sandbox
from shared.queue.jobs import RefreshConversation
from shared.retention import tombstones
from shared.states import Desired, Reason, Status
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_conversation, make_event
from tests.fakes.agent_server import FakeAgentServer
from tests.worker import scenarios
from tests.worker.scenarios import another, assert_at_rest, change, deliver, hooked_context, row
from worker.context import WorkerContext
from worker.conversations.refresh import refresh_conversation
from worker.loops.sweep import sweep
from worker.sandboxes.reconciler import reconcile

MAX_POINTS = 60


@pytest.fixture
def sibling(context: WorkerContext, user: ApiUser, sandbox: Sandbox, server: FakeAgentServer) -> Conversation:
    """A second conversation, for which the sandbox is kept."""
    found = make_conversation(context.database, user, sandbox, title_settled=True)
    server.add(found.id)
    return found


@pytest.fixture
def conversation(context: WorkerContext, user: ApiUser, sandbox: Sandbox, server: FakeAgentServer) -> Conversation:
    found = make_conversation(context.database, user, sandbox, title_settled=True)
    server.add(found.id)
    make_event(context.database, found)
    return found


def delete(context: WorkerContext, user: ApiUser, conversation: Conversation) -> None:
    """Delete the conversation as the API does, without publishing the jobs."""
    with context.database.transaction() as session:
        conversation_deletion.delete_conversation(
            session, conversation.id, user.id, due_at=after(context.shared.republish_seconds)
        )


def pause(context: WorkerContext, sandbox: Sandbox, desired: Desired = Desired.PAUSED) -> None:
    scenarios.set_desired(context, sandbox.id, desired)
    reconcile(context, sandbox.id)


def assert_deleted(context: WorkerContext, conversation: Conversation, server: FakeAgentServer) -> None:
    found = row(context, Conversation, conversation.id)
    assert_at_rest(found)
    assert (found.listed, found.awaits_sandbox) == (False, False)
    assert conversation.id not in server.conversations
    assert_no_events(context)


def assert_no_events(context: WorkerContext) -> None:
    with context.database.reading() as session:
        assert session.exec(select(Event)).all() == []


@pytest.mark.usefixtures("sibling")
class TestRunningSandbox:
    def test_defect_41_conversation_is_deleted_completely(
        self,
        context: WorkerContext,
        user: ApiUser,
        conversation: Conversation,
        sibling: Conversation,
        server: FakeAgentServer,
    ) -> None:
        delete(context, user, conversation)
        refresh_conversation(context, conversation.id)
        assert_deleted(context, conversation, server)
        assert list(server.conversations) == [sibling.id]
        calls = list(server.calls)
        refresh_conversation(context, conversation.id)
        assert server.calls == calls

    def test_conversation_is_deleted_by_the_sweep_if_the_job_is_lost(
        self, context: WorkerContext, user: ApiUser, conversation: Conversation, server: FakeAgentServer
    ) -> None:
        delete(context, user, conversation)
        change(context, Conversation, conversation.id, due_at=now())
        sweep(context)
        deliver(context)
        assert_deleted(context, conversation, server)

    def test_conversation_that_the_server_does_not_know_is_deleted(
        self, context: WorkerContext, user: ApiUser, conversation: Conversation, server: FakeAgentServer
    ) -> None:
        server.conversations.clear()
        delete(context, user, conversation)
        refresh_conversation(context, conversation.id)
        assert_deleted(context, conversation, server)

    def test_server_that_refuses_gets_no_retry(
        self, context: WorkerContext, user: ApiUser, conversation: Conversation, server: FakeAgentServer
    ) -> None:
        server.refuse = {"delete_conversation": httpx.Response(409, json={"detail": "no"})}
        delete(context, user, conversation)
        refresh_conversation(context, conversation.id)
        found = row(context, Conversation, conversation.id)
        assert_at_rest(found)
        assert not found.awaits_sandbox

    def test_server_that_does_not_respond_gets_a_retry(
        self, context: WorkerContext, user: ApiUser, conversation: Conversation, server: FakeAgentServer
    ) -> None:
        server.refuse = {"delete_conversation": httpx.Response(503)}
        delete(context, user, conversation)
        refresh_conversation(context, conversation.id)
        found = row(context, Conversation, conversation.id)
        assert found.due_at is not None
        assert_no_events(context)
        server.refuse = {}
        refresh_conversation(context, conversation.id)
        assert_deleted(context, conversation, server)

    def test_events_are_removed_in_batches(
        self,
        context: WorkerContext,
        user: ApiUser,
        conversation: Conversation,
        server: FakeAgentServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(conversation_deletion, "EVENTS_AT_ONCE", 2)
        for _ in range(4):
            make_event(context.database, conversation)
        delete(context, user, conversation)
        pauses: list[float] = []
        monkeypatch.setattr("worker.conversations.deletion.time.sleep", pauses.append)
        refresh_conversation(context, conversation.id)
        assert_deleted(context, conversation, server)
        # SQLite's writers would find its lock taken again and again.
        assert [pause > 0 for pause in pauses] == [True] * 2

    def test_deletion_removes_old_tombstones_beyond_the_limit(
        self,
        context: WorkerContext,
        user: ApiUser,
        sandbox: Sandbox,
        conversation: Conversation,
        sibling: Conversation,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Otherwise their number would grow with the age of the sandbox."""
        monkeypatch.setattr(tombstones, "MAX_KEPT", 2)
        long_ago, young = now() - tombstones.RETENTION, now() - tombstones.RETENTION / 2
        deleted_at = [long_ago] * 5 + [young] * 2
        made = [make_tombstone(context, user, sandbox, age, at) for age, at in enumerate(deleted_at)]
        delete(context, user, conversation)
        refresh_conversation(context, conversation.id)
        with context.database.reading() as session:
            left = set(session.exec(select(Conversation.id)).all())
        assert left == {made[0].id, made[1].id, made[5].id, made[6].id, conversation.id, sibling.id}

    def test_worker_that_dies_is_replaced(
        self, context: WorkerContext, user: ApiUser, sandbox: Sandbox, server: FakeAgentServer
    ) -> None:
        died = 0
        for at in range(MAX_POINTS):
            conversation = make_conversation(context.database, user, sandbox, title_settled=True)
            server.add(conversation.id)
            make_event(context.database, conversation)
            delete(context, user, conversation)
            working, database = hooked_context(context, at, die)
            server.before = server.after = pointed(database.point)
            try:
                refresh_conversation(working, conversation.id)
            except SystemExit:
                died += 1
            server.before = server.after = lambda _method: None
            if row(context, Conversation, conversation.id).lease_until is not None:
                change(context, Conversation, conversation.id, lease_until=now())
            refresh_conversation(another(context), conversation.id)
            assert_deleted(context, conversation, server)
            if database.passed <= at:
                break
        assert 10 <= died < MAX_POINTS


@pytest.mark.usefixtures("sibling")
class TestPausedSandbox:
    @pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
    def test_conversation_is_deleted_once_the_sandbox_runs_again(
        self,
        context: WorkerContext,
        user: ApiUser,
        sandbox: Sandbox,
        conversation: Conversation,
        server: FakeAgentServer,
        publisher: RecordingPublisher,
        desired: Desired,
    ) -> None:
        pause(context, sandbox, desired)
        delete(context, user, conversation)
        refresh_conversation(context, conversation.id)
        waiting = row(context, Conversation, conversation.id)
        assert_at_rest(waiting)
        assert waiting.awaits_sandbox
        assert_no_events(context)  # their deletion needs no sandbox
        publisher.jobs.clear()
        scenarios.set_desired(context, sandbox.id, Desired.RUNNING)
        reconcile(context, sandbox.id)
        assert RefreshConversation(conversation.id, NODE_ID) in publisher.jobs
        deliver(context)
        assert_deleted(context, conversation, server)

    def test_conversation_causes_no_request_when_the_sandbox_is_deleted(
        self,
        context: WorkerContext,
        user: ApiUser,
        sandbox: Sandbox,
        conversation: Conversation,
        publisher: RecordingPublisher,
    ) -> None:
        pause(context, sandbox)
        delete(context, user, conversation)
        refresh_conversation(context, conversation.id)
        publisher.jobs.clear()
        scenarios.set_desired(context, sandbox.id, Desired.DELETED)
        reconcile(context, sandbox.id)
        deliver(context)
        found = row(context, Conversation, conversation.id)
        assert_at_rest(found)
        assert not found.awaits_sandbox

    def test_sandbox_in_error_gets_no_request(
        self,
        context: WorkerContext,
        user: ApiUser,
        sandbox: Sandbox,
        conversation: Conversation,
        server: FakeAgentServer,
    ) -> None:
        change(context, Sandbox, sandbox.id, status=Status.ERROR, reason=Reason.EXIT_CODE)
        delete(context, user, conversation)
        server.calls.clear()
        refresh_conversation(context, conversation.id)
        assert server.calls == []
        assert row(context, Conversation, conversation.id).awaits_sandbox

    def test_conversation_in_a_sandbox_without_a_node_is_deleted_by_any_worker(
        self, context: WorkerContext, user: ApiUser, sandbox: Sandbox, conversation: Conversation
    ) -> None:
        """`nodes forget` leaves the node's sandboxes in this state."""
        delete(context, user, conversation)
        change(context, Sandbox, sandbox.id, node_id=None, status=Status.DELETED, desired=Desired.DELETED, due_at=None)
        change(context, Conversation, conversation.id, due_at=now())
        sweep(context)
        deliver(context)
        assert_no_events(context)
        assert not row(context, Conversation, conversation.id).awaits_sandbox


def test_last_conversation_deletes_its_sandbox(
    context: WorkerContext, user: ApiUser, sandbox: Sandbox, conversation: Conversation, server: FakeAgentServer
) -> None:
    change(context, Sandbox, sandbox.id, goes_with_conversations=True)
    delete(context, user, conversation)
    refresh_conversation(context, conversation.id)
    assert_at_rest(row(context, Conversation, conversation.id))
    assert_no_events(context)
    assert "delete_conversation" not in server.calls
    reconcile(context, sandbox.id)
    assert row(context, Sandbox, sandbox.id).status == Status.DELETED


def make_tombstone(
    context: WorkerContext, user: ApiUser, sandbox: Sandbox, age: int, deleted_at: datetime
) -> Conversation:
    """A deleted conversation that was created `age` days before the deletion's retention began."""
    created_at = now() - tombstones.RETENTION - timedelta(days=age)
    columns = {"created_at": created_at, "deleted_at": deleted_at}
    return make_conversation(context.database, user, sandbox, listed=False, **columns)


def die() -> None:
    raise SystemExit


def pointed(point: Callable[[], None]) -> Callable[[str], None]:
    return lambda _method: point()
