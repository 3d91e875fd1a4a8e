"""Deadlines: an unused sandbox is paused, stopped and deleted, and its history shows the reasons."""

from typing import Any

import pytest
import time_machine
from sqlmodel import select

from shared.clock import after, now
from shared.db.database import Database
from shared.models import Node, Sandbox, SandboxSpec, StartTask
from shared.queue.jobs import DeleteSandbox, Job, PauseSandbox, StopSandbox
from shared.sandboxes import deadlines, due_deadlines, specs
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.deadlines import NEVER
from shared.states import Desired, NodeStatus, Reason, Stage, Status
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_conversation, make_start_task
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.scenarios import another, assert_at_rest, change, configure, deliver, row, running, set_desired, start
from worker.context import WorkerContext
from worker.conversations.start import start_conversation
from worker.engine.protocol import ContainerState
from worker.loops.deadlines import apply_deadlines
from worker.loops.sweep import sweep
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

PAUSE, STOP, DELETE = 60, 600, 6000


@pytest.fixture(autouse=True)
def _spec(database: Database, context: WorkerContext) -> None:
    assert context.database is database
    chain = {"freeze_after_seconds": PAUSE, "stop_after_seconds": STOP, "delete_after_seconds": DELETE}
    with database.transaction() as session:
        specs.set_deadlines(session, IMAGE, chain)


def swept(context: WorkerContext) -> list[Job]:
    """Run one sweep and its jobs, and return the jobs."""
    assert isinstance(context.publisher, RecordingPublisher)
    context.publisher.jobs.clear()
    sweep(context)
    jobs = list(context.publisher.jobs)
    deliver(context)
    return jobs


def history(context: WorkerContext, sandbox_id: str) -> list[tuple[str, str | None, str | None]]:
    with context.database.reading() as session:
        transitions = sandbox_queries.transitions(session, sandbox_id)
    return [(transition.to_status, transition.pause_kind, transition.reason) for transition in transitions]


def in_force(context: WorkerContext, sandbox_id: str, **own: int | None) -> None:
    with context.database.transaction() as session:
        deadlines.set_own(session, session.get_one(Sandbox, sandbox_id), own)


def test_unused_sandbox_is_paused_stopped_and_deleted(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    with time_machine.travel(now(), tick=False) as clock:
        sandbox_id = running(context, user)
        name = container_name(sandbox_id)
        deadlines_ = (
            (PAUSE, PauseSandbox, ContainerState.PAUSED),
            (STOP, StopSandbox, ContainerState.EXITED),
            (DELETE, DeleteSandbox, None),
        )
        for seconds, job, state in deadlines_:
            clock.shift(seconds - 1)
            assert swept(context) == []
            clock.shift(1)
            assert swept(context) == [job(sandbox_id, NODE_ID)]
            assert (engine.containers[name].state if name in engine.containers else None) == state
            assert swept(context) == []
            assert_at_rest(row(context, Sandbox, sandbox_id))
    assert history(context, sandbox_id) == [
        ("STARTING", None, None),
        ("RUNNING", None, None),
        ("PAUSED", "FROZEN", Reason.IDLE_FROZEN),
        ("PAUSED", "STOPPED", Reason.IDLE_STOPPED),
        ("DELETING", None, Reason.IDLE_DELETED),
        ("DELETED", None, Reason.IDLE_DELETED),
    ]
    assert engine.volumes == {}


def test_deadline_of_a_resumed_sandbox_restarts(context: WorkerContext, user: ApiUser) -> None:
    with time_machine.travel(now(), tick=False) as clock:
        sandbox_id = running(context, user)
        for seconds in (PAUSE, STOP):
            clock.shift(seconds)
            swept(context)
            set_desired(context, sandbox_id, Desired.RUNNING)
            reconcile(context, sandbox_id)
            found = row(context, Sandbox, sandbox_id)
            assert (found.status, found.reason, found.deadline_at) == (Status.RUNNING, None, after(PAUSE))
            clock.shift(PAUSE)
            assert swept(context) == [PauseSandbox(sandbox_id, NODE_ID)]


def test_expired_sandbox_is_deleted_with_its_reason(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    with time_machine.travel(now(), tick=False) as clock:
        sandbox_id = running(context, user)
        in_force(context, sandbox_id, max_age_seconds=30)
        clock.shift(30)
        assert swept(context) == [DeleteSandbox(sandbox_id, NODE_ID)]
    assert history(context, sandbox_id)[-1] == ("DELETED", None, Reason.EXPIRED)
    assert engine.containers == {}


def test_sandbox_that_failed_is_deleted_in_time(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    with time_machine.travel(now(), tick=False) as clock:
        sandbox_id = running(context, user)
        engine.containers[container_name(sandbox_id)].state = ContainerState.EXITED
        change(context, Sandbox, sandbox_id, due_at=now())
        clock.shift(10)
        reconcile(context, sandbox_id)
        assert row(context, Sandbox, sandbox_id).status == Status.ERROR
        clock.shift(DELETE - 1)
        assert swept(context) == []
        clock.shift(1)
        assert swept(context) == [DeleteSandbox(sandbox_id, NODE_ID)]
    assert (engine.containers, engine.volumes) == ({}, {})


def test_sandbox_without_a_node_expires(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    change(context, Node, NODE_ID, capacity=0)
    with time_machine.travel(now(), tick=False) as clock:
        sandbox_id = start(context, user)
        in_force(context, sandbox_id, max_age_seconds=30)
        clock.shift(30)
        swept(context)
        swept(context)
        assert row(context, Sandbox, sandbox_id).status == Status.DELETED
    assert engine.verbs() == []


class TestActivity:
    def test_sandbox_with_a_running_agent_is_not_paused(self, context: WorkerContext, user: ApiUser) -> None:
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(context, user)
            conversation = make_conversation(
                context.database, user, row(context, Sandbox, sandbox_id), execution_status="running"
            )
            for _ in range(3):
                clock.shift(PAUSE)
                assert swept(context) == []
                assert row(context, Sandbox, sandbox_id).last_active_at == now()
            change(context, type(conversation), conversation.id, execution_status="finished")
            clock.shift(PAUSE)
            assert swept(context) == [PauseSandbox(sandbox_id, NODE_ID)]

    def test_completed_start_counts_as_activity(self, context: WorkerContext, user: ApiUser) -> None:
        """The deadline restarts when the start completes."""
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(context, user)
            task = make_start_task(
                context.database, user, row(context, Sandbox, sandbox_id), stage=Stage.WORKING, due_at=now()
            )
            configure(context, user)
            clock.shift(PAUSE - 1)
            start_conversation(context, task.id)
            assert row(context, StartTask, task.id).stage == Stage.READY
            assert row(context, Sandbox, sandbox_id).deadline_at == after(PAUSE)


class TestLostNode:
    @pytest.mark.parametrize("cordoned", [False, True])
    def test_only_deletes_are_applied(self, context: WorkerContext, user: ApiUser, cordoned: bool) -> None:
        with time_machine.travel(now(), tick=False) as clock:
            idle, doomed = running(context, user), running(context, user)
            in_force(context, doomed, max_age_seconds=PAUSE)
            status = NodeStatus.CORDONED if cordoned else NodeStatus.LOST
            change(context, Node, NODE_ID, status=status, detail="its engine does not respond")
            clock.shift(PAUSE)
            assert isinstance(context.publisher, RecordingPublisher)
            sweep(context)
            assert context.publisher.jobs == [DeleteSandbox(doomed, NODE_ID)]
            assert row(context, Sandbox, idle).generation == 1
            assert row(context, Sandbox, doomed).desired == Desired.DELETED
            change(context, Node, NODE_ID, status=NodeStatus.READY, detail=None)
            clock.shift(context.shared.republish_seconds + 1)  # its message was lost
            assert PauseSandbox(idle, NODE_ID) in swept(context)
            assert row(context, Sandbox, doomed).status == Status.DELETED


class TestRaces:
    def test_resume_overtakes_a_pause_in_progress(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(context, user)
            clock.shift(PAUSE)

            def overtake(_name: str) -> None:
                engine.before.clear()
                set_desired(context, sandbox_id, Desired.RUNNING)

            engine.before["pause"] = overtake
            swept(context)
            found = row(context, Sandbox, sandbox_id)
            assert (found.status, found.reason, found.deadline_at) == (Status.RUNNING, None, after(PAUSE))

    def test_pause_by_the_owner_replaces_the_reason_of_the_deadline(
        self, context: WorkerContext, user: ApiUser
    ) -> None:
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(context, user)
            clock.shift(PAUSE)
            sweep(context)
            set_desired(context, sandbox_id, Desired.PAUSED)
            deliver(context)
            assert history(context, sandbox_id)[-1] == ("PAUSED", "FROZEN", None)

    def test_pause_by_the_owner_during_a_pause_by_deadline_has_no_reason(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(context, user)
            clock.shift(PAUSE)
            engine.before["pause"] = lambda _name: set_desired(context, sandbox_id, Desired.PAUSED)
            swept(context)
            assert history(context, sandbox_id)[-1] == ("PAUSED", "FROZEN", None)

    def test_request_of_the_owner_between_read_and_write_wins(
        self, context: WorkerContext, user: ApiUser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The sweep does not overrule a request that comes between its read and its write."""
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(context, user)
            clock.shift(PAUSE)
            read = due_deadlines.overdue

            def read_and_wait(session: Any, node_id: str) -> Any:
                found = read(session, node_id)
                in_force(context, sandbox_id, freeze_after_seconds=NEVER)
                return found

            monkeypatch.setattr(due_deadlines, "overdue", read_and_wait)
            apply_deadlines(context)
            assert row(context, Sandbox, sandbox_id).generation == 1

    def test_two_workers_of_a_node_apply_a_deadline_once(self, context: WorkerContext, user: ApiUser) -> None:
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(context, user)
            clock.shift(PAUSE)
            apply_deadlines(context)
            apply_deadlines(another(context))
            assert row(context, Sandbox, sandbox_id).generation == 2


def test_deadline_columns_are_current_in_every_state(context: WorkerContext, user: ApiUser) -> None:
    """Every write to the row updates the columns that the sweep reads."""
    ids = [running(context, user) for _ in range(4)]
    for sandbox_id, desired in zip(ids, Desired, strict=True):
        set_desired(context, sandbox_id, desired)
        reconcile(context, sandbox_id)
    for sandbox_id in ids:
        before = row(context, Sandbox, sandbox_id).model_dump()
        with context.database.transaction() as session:
            deadlines.refresh(session, sandbox_id)
        assert row(context, Sandbox, sandbox_id).model_dump() == before
    with context.database.reading() as session:
        assert session.exec(select(SandboxSpec.freeze_after_seconds)).one() == PAUSE
