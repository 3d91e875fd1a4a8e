"""A worker with a wrong clock loses nothing, expires nothing, runs no jobs, and reports the clock."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import time_machine
from sqlmodel import select

from shared.clock import after, now
from shared.db.database_clock import sync_clock
from shared.models import ChangeEntry, IdempotencyKey, Node, Sandbox, SandboxSpec
from shared.queue.jobs import CheckSandbox
from shared.sandboxes import queries as sandbox_queries
from shared.states import Desired, NodeStatus, Status
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_sandbox
from tests.fakes.engine import IMAGE, FakeEngine
from tests.rows import all_rows
from tests.worker.scenarios import another, change, row, running, start
from worker.__main__ import make_periodic_tasks
from worker.context import WorkerContext
from worker.loops.door_check import DoorCheck
from worker.loops.health_monitor import open_monitor
from worker.loops.heartbeat import send_heartbeat
from worker.loops.periodic import unless_clock_is_wrong
from worker.loops.sweep import sweep
from worker.sandboxes.reconciler import reconcile
from worker.startup import await_right_clock

CLOSE = timedelta(seconds=30)
HOUR = 3600

pytestmark = pytest.mark.parametrize("seconds", [-24 * HOUR, -HOUR, -90, 90, HOUR, 24 * HOUR])


@pytest.fixture
def old_sandbox(context: WorkerContext, user: ApiUser) -> Sandbox:
    """A stored response, change entries and a sandbox that a clock a day ahead would delete or expire."""
    change(context, SandboxSpec, IMAGE, max_age_seconds=12 * HOUR)
    stored: dict[str, Any] = {
        "owner_id": user.id,
        "operation": "POST /x",
        "fingerprint": "",
        "status": 200,
        "answer": {},
    }
    with context.database.transaction() as session:
        session.add(IdempotencyKey(key="kept", expires_at=after(23 * HOUR), **stored))
    return row(context, Sandbox, running(context, user))


def test_sweep_deletes_and_expires_nothing(context: WorkerContext, old_sandbox: Sandbox, seconds: int) -> None:
    before = all_rows(context.database)
    with time_machine.travel(after(seconds)):
        sync_clock(context.database)
        sweep(context)
        sweep(context)
    assert all_rows(context.database) == before
    with context.database.reading() as session:
        assert session.exec(select(IdempotencyKey.key)).all() == ["kept"]
        assert session.exec(select(ChangeEntry.number)).first() is not None
        assert session.get_one(Sandbox, old_sandbox.id).desired == Desired.RUNNING


def test_periodic_tasks_do_nothing_until_the_clock_is_right(
    context: WorkerContext, user: ApiUser, seconds: int
) -> None:
    sandbox_id = make_sandbox(context.database, user, due_at=now()).id
    assert isinstance(context.publisher, RecordingPublisher)
    work = unless_clock_is_wrong(lambda: sweep(context))
    sync_clock(context.database)
    with time_machine.travel(after(seconds)):
        work()
        assert context.publisher.jobs == []
    work()
    assert context.publisher.jobs == [CheckSandbox(sandbox_id, NODE_ID)]


def test_no_periodic_task_accesses_database_or_engine(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, door: DoorCheck, seconds: int
) -> None:
    start(context, user)
    before = all_rows(context.database)
    sync_clock(context.database)
    with time_machine.travel(after(seconds)):
        for task in make_periodic_tasks(context, open_monitor(context), door):
            task._function()
    assert all_rows(context.database) == before
    assert engine.calls == []


def test_jobs_are_left_to_other_workers(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, seconds: int
) -> None:
    sandbox_id = start(context, user)
    before = all_rows(context.database)
    with time_machine.travel(after(seconds)):
        sync_clock(context.database)
        reconcile(context, sandbox_id)
    assert all_rows(context.database) == before
    assert engine.calls == []
    reconcile(another(context), sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING


def test_history_is_in_order_after_a_clock_change(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, seconds: int
) -> None:
    sandbox_id = start(context, user)
    sync_clock(context.database)
    traveller = time_machine.travel(after(seconds))

    def set_clock(_name: str) -> None:
        traveller.start()

    engine.before = {"start": set_clock}
    try:
        reconcile(context, sandbox_id)
    finally:
        traveller.stop()
    with context.database.reading() as session:
        transitions = sandbox_queries.transitions(session, sandbox_id)
    times = [transition.at for transition in transitions]
    assert [transition.to_status for transition in transitions] == [Status.STARTING, Status.RUNNING]
    assert times == sorted(times)
    assert times[-1] - times[0] < CLOSE


def test_single_worker_reports_its_clock_in_the_node(context: WorkerContext, seconds: int) -> None:
    change(context, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=1))
    with time_machine.travel(after(seconds)):
        sync_clock(context.database)
        send_heartbeat(context)
        found = row(context, Node, NODE_ID)
        assert found.status == NodeStatus.LOST
        assert "the clock of its worker's machine is" in (found.detail or "")
    send_heartbeat(context)
    found = row(context, Node, NODE_ID)
    assert (found.status, found.detail) == (NodeStatus.READY, None)


def test_node_with_another_worker_stays_in_use(context: WorkerContext, seconds: int) -> None:
    send_heartbeat(another(context))
    before = row(context, Node, NODE_ID)
    with time_machine.travel(after(seconds)):
        sync_clock(context.database)
        send_heartbeat(context)
    assert row(context, Node, NODE_ID) == before


def test_worker_waits_for_the_right_time_before_it_begins(
    context: WorkerContext, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    traveller = time_machine.travel(after(seconds))
    waited: list[float] = []

    def set_clock(pause: float) -> None:
        waited.append(pause)
        traveller.stop()

    monkeypatch.setattr("worker.startup.keep_clock_synced", lambda _database: None)
    # Other threads use the real `time.sleep`.
    monkeypatch.setattr("worker.startup.time", SimpleNamespace(sleep=set_clock))
    traveller.start()
    await_right_clock(context)
    assert waited == [context.settings.heartbeat_seconds]
