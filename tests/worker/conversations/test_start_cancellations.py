"""Cancelled starts: at every stage and at every point they end, and what was created for them is deleted."""

from functools import partial
from typing import Any

import httpx
import pytest

from shared.clock import after, now
from shared.conversations import deletion as conversation_deletion
from shared.conversations import events, start_tasks
from shared.conversations import queries as conversation_queries
from shared.models import Conversation, Node, Sandbox, StartTask
from shared.states import FINAL_STAGES, Desired, Reason, Stage, Status
from tests.factories import ApiUser, make_conversation, make_event, make_start_task
from tests.fakes.agent_server import FakeAgentServer
from tests.worker.scenarios import (
    assert_at_rest,
    assert_failed,
    change,
    configure,
    conversation_of,
    deliver,
    hooked_context,
    request_start,
    row,
    set_desired,
    task_of,
)
from worker.context import WorkerContext
from worker.conversations.start import start_conversation
from worker.loops.sweep import sweep
from worker.sandboxes.reconciler import reconcile

MAX_POINTS = 100


@pytest.fixture(autouse=True)
def _settings(context: WorkerContext, user: ApiUser) -> None:
    configure(context, user)
    change(context, Node, context.settings.node, heartbeat_at=after(600))


def cancel(context: WorkerContext, user: ApiUser, task_id: str) -> None:
    """Cancel the start as the API does, without publishing the job."""
    with context.database.transaction() as session:
        start_tasks.cancel(session, task_id, user.id, due_at=now())


@pytest.mark.parametrize("goes", [True, False])
@pytest.mark.parametrize("cancelled", [True, False])
@pytest.mark.parametrize("stage", list(Stage))
def test_cancelled_start_ends_at_every_stage(
    context: WorkerContext,
    user: ApiUser,
    sandbox_id: str,
    server: FakeAgentServer,
    stage: Stage,
    *,
    cancelled: bool,
    goes: bool,
) -> None:
    """A finished start stays as it is; a cancelled one ends in ERROR; any other one continues to READY."""
    change(context, Sandbox, sandbox_id, goes_with_conversations=goes)
    sandbox = row(context, Sandbox, sandbox_id)
    task = make_start_task(
        context.database,
        user,
        sandbox,
        stage=stage,
        due_at=now(),
        reason=Reason.CLONE_FAILED if stage == Stage.ERROR else None,
    )
    if stage in (Stage.STARTING_CONVERSATION, Stage.READY):
        make_conversation(context.database, user, sandbox, id=task.conversation_id, listed=stage == Stage.READY)
        server.add(task.conversation_id)
    change(context, StartTask, task.id, cancelled_at=now()) if cancelled else None
    start_conversation(context, task.id)
    if stage in FINAL_STAGES:
        assert (task_of(context, task.id).stage, task_of(context, task.id).reason) == (stage, task.reason)
        assert row(context, Sandbox, sandbox_id).desired == Desired.RUNNING
    elif cancelled:
        assert_failed(context, task.id, Reason.CANCELLED, "cancelled")
        assert row(context, Sandbox, sandbox_id).desired == (Desired.DELETED if goes else Desired.RUNNING)
        assert goes or task.conversation_id not in server.conversations
        assert server.commands == []
    else:
        assert task_of(context, task.id).stage == Stage.READY
        found = conversation_of(context, task.id)
        assert found
        assert found.listed


def test_events_that_precede_the_conversation_are_removed_in_batches(
    context: WorkerContext, user: ApiUser, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program in the sandbox may report any number of them, and SQLite has one writer."""
    removed: list[int] = []

    def remove(*arguments: Any) -> int:
        removed.append(remove_events(*arguments))
        return removed[-1]

    remove_events = events.remove
    monkeypatch.setattr(events, "remove", remove)
    monkeypatch.setattr(conversation_deletion, "EVENTS_AT_ONCE", 2)
    change(context, Sandbox, sandbox_id, goes_with_conversations=True)
    sandbox = row(context, Sandbox, sandbox_id)
    task = make_start_task(context.database, user, sandbox, stage=Stage.PREPARING_REPOSITORY, cancelled_at=now())
    reported = make_conversation(context.database, user, sandbox, id=task.conversation_id, listed=False)
    for _ in range(5):
        make_event(context.database, reported)
    start_conversation(context, task.id)
    assert_failed(context, task.id, Reason.CANCELLED, "cancelled")
    assert conversation_of(context, task.id) is None
    assert [number for number in removed if number] == [2, 2, 1]


def test_start_that_is_cancelled_stops_at_the_next_point(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    """A cancellation at each point: the start is READY with its conversation, or in ERROR without one."""
    cancelled = 0
    for at in range(MAX_POINTS):
        task_id = request_start(context, user, sandbox_id, title="A title")
        working, database = hooked_context(context, at, partial(cancel_unless_ready, context, user, task_id))
        server.before = server.after = lambda _method, point=database.point: point()  # type: ignore[misc]
        start_conversation(working, task_id)
        server.before = server.after = lambda _method: None
        task = task_of(context, task_id)
        if task.stage == Stage.READY:
            assert task.cancelled_at is None
            assert task.conversation_id in server.conversations
            found = conversation_of(context, task_id)
            assert found
            assert found.listed
        else:
            cancelled += 1
            assert_failed(context, task_id, Reason.CANCELLED)
            assert task.conversation_id not in server.conversations
        assert row(context, Sandbox, sandbox_id).desired == Desired.RUNNING
        if database.passed <= at:
            break
    assert 25 < cancelled < MAX_POINTS - 1


def cancel_unless_ready(context: WorkerContext, user: ApiUser, task_id: str) -> None:
    if task_of(context, task_id).stage != Stage.READY:
        cancel(context, user, task_id)


def test_start_that_waits_for_its_sandbox_ends_immediately(context: WorkerContext, user: ApiUser) -> None:
    task_id = request_start(context, user)
    sandbox_id = str(task_of(context, task_id).sandbox_id)
    start_conversation(context, task_id)
    assert task_of(context, task_id).stage == Stage.WAITING_FOR_SANDBOX
    cancel(context, user, task_id)
    start_conversation(context, task_id)
    assert_failed(context, task_id, Reason.CANCELLED)
    assert row(context, Sandbox, sandbox_id).desired == Desired.DELETED
    deliver(context)
    assert row(context, Sandbox, sandbox_id).status == Status.DELETED


def test_start_whose_sandbox_has_no_node_is_ended_by_any_worker(context: WorkerContext, user: ApiUser) -> None:
    task_id = request_start(context, user)
    sandbox_id = str(task_of(context, task_id).sandbox_id)
    change(context, Node, context.settings.node, capacity=0)
    change(context, Sandbox, sandbox_id, node_id=None)
    cancel(context, user, task_id)
    sweep(context)
    deliver(context)
    assert_failed(context, task_id, Reason.CANCELLED)
    assert row(context, Sandbox, sandbox_id).desired == Desired.DELETED


def test_sandbox_that_another_start_uses_is_kept(context: WorkerContext, user: ApiUser, sandbox_id: str) -> None:
    first = request_start(context, user, sandbox_id)
    change(context, Sandbox, sandbox_id, goes_with_conversations=True)
    second = request_start(context, user, sandbox_id)
    cancel(context, user, first)
    start_conversation(context, first)
    assert row(context, Sandbox, sandbox_id).desired == Desired.RUNNING
    start_conversation(context, second)
    assert task_of(context, second).stage == Stage.READY


def test_last_of_two_starts_deletes_the_sandbox_of_a_deleted_conversation(
    context: WorkerContext, user: ApiUser, sandbox_id: str
) -> None:
    change(context, Sandbox, sandbox_id, goes_with_conversations=True)
    first = make_conversation(context.database, user, row(context, Sandbox, sandbox_id))
    second = request_start(context, user, sandbox_id)
    with context.database.transaction() as session:
        conversation_deletion.delete_conversation(session, first.id, user.id, due_at=now())
    assert row(context, Sandbox, sandbox_id).desired == Desired.RUNNING
    cancel(context, user, second)
    start_conversation(context, second)
    assert_failed(context, second, Reason.CANCELLED)
    assert row(context, Sandbox, sandbox_id).desired == Desired.DELETED


def test_conversation_of_a_cancelled_start_is_deleted_when_its_sandbox_runs(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    task_id = request_start(context, user, sandbox_id)
    server.refuse = {"create_conversation": httpx.Response(503)}
    start_conversation(context, task_id)
    server.refuse = {}
    conversation_id = task_of(context, task_id).conversation_id
    server.add(conversation_id)  # the server has executed the create
    set_desired(context, sandbox_id, Desired.PAUSED)
    reconcile(context, sandbox_id)
    cancel(context, user, task_id)
    start_conversation(context, task_id)
    assert task_of(context, task_id).reason == Reason.CANCELLED
    waiting = row(context, Conversation, conversation_id)
    assert_at_rest(waiting)
    assert waiting.awaits_sandbox
    set_desired(context, sandbox_id, Desired.RUNNING)
    reconcile(context, sandbox_id)
    deliver(context)
    assert conversation_id not in server.conversations
    with context.database.reading() as session:
        assert conversation_queries.find(session, conversation_id) is None
