"""The sweep enqueues due rows periodically, for the worker of their node only."""

from datetime import timedelta
from typing import Any

import pytest
import time_machine
from sqlmodel import insert, select

from shared.clock import after, now
from shared.ids import new_id
from shared.leasing.leases import MAX_OF_OWNER
from shared.models import Conversation, IdempotencyKey, Node, Sandbox, StartTask
from shared.queue.jobs import CheckSandbox, Job, RefreshConversation, StartConversation, StartSandbox
from shared.states import Desired, NodeStatus, Stage, Status
from tests.doubles import RecordingPublisher
from tests.factories import (
    NODE_ID,
    ApiUser,
    make_conversation,
    make_node,
    make_sandbox,
    make_start_task,
    make_user,
)
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import assert_at_rest, change, deliver, row, set_desired, start
from worker.context import WorkerContext
from worker.loops.heartbeat import send_heartbeat
from worker.loops.sweep import sweep


def swept(context: WorkerContext) -> list[Job]:
    """Run one sweep, and lose its jobs. Returns the jobs."""
    assert isinstance(context.publisher, RecordingPublisher)
    context.publisher.jobs.clear()
    sweep(context)
    return list(context.publisher.jobs)


@pytest.fixture
def sandbox(context: WorkerContext, user: ApiUser) -> Sandbox:
    return make_sandbox(context.database, user)


@pytest.mark.usefixtures("sandbox")
def test_sweep_without_due_rows_publishes_nothing(context: WorkerContext) -> None:
    assert swept(context) == []


def test_each_kind_of_row_is_enqueued(context: WorkerContext, user: ApiUser, sandbox: Sandbox) -> None:
    change(context, Sandbox, sandbox.id, due_at=now())
    task = make_start_task(context.database, user, sandbox)
    conversation = make_conversation(context.database, user, sandbox, due_at=now())
    assert swept(context) == [
        CheckSandbox(sandbox.id, NODE_ID),
        StartConversation(task.id, NODE_ID),
        RefreshConversation(conversation.id, NODE_ID),
    ]


def test_due_row_is_published_once_in_each_window(context: WorkerContext, sandbox: Sandbox) -> None:
    change(context, Sandbox, sandbox.id, due_at=now())
    window = timedelta(seconds=context.shared.republish_seconds)
    for _ in range(3):
        assert swept(context) == [CheckSandbox(sandbox.id, NODE_ID)]
        assert swept(context) == []
        change(context, Sandbox, sandbox.id, due_at=row(context, Sandbox, sandbox.id).due_at - window)  # type: ignore[operator]


def test_due_row_is_published_when_its_time_has_come(context: WorkerContext, sandbox: Sandbox) -> None:
    change(context, Sandbox, sandbox.id, due_at=after(10))
    with time_machine.travel(after(9.5), tick=False) as clock:
        assert swept(context) == []
        clock.shift(1)
        assert len(swept(context)) == 1
        clock.shift(context.shared.republish_seconds - 0.1)
        assert swept(context) == []
        clock.shift(0.2)
        assert len(swept(context)) == 1


def test_final_tasks_and_rows_of_other_nodes_are_skipped(
    context: WorkerContext, user: ApiUser, sandbox: Sandbox
) -> None:
    make_node(context.database, "node-b")
    there = make_sandbox(context.database, user, node_id="node-b", due_at=now())
    make_start_task(context.database, user, there)
    make_conversation(context.database, user, there, due_at=now())
    make_start_task(context.database, user, sandbox, stage=Stage.READY)
    assert swept(context) == []


@pytest.mark.parametrize("table", [Sandbox, StartTask, Conversation])
def test_row_with_an_expired_lease_is_enqueued_and_a_leased_one_is_not(
    context: WorkerContext, user: ApiUser, sandbox: Sandbox, table: Any
) -> None:
    lease: dict[str, Any] = {"lease_owner": "worker-0", "lease_until": after(10), "due_at": None}
    rows = (
        sandbox,
        make_start_task(context.database, user, sandbox),
        make_conversation(context.database, user, sandbox),
    )
    made = next(row.id for row in rows if isinstance(row, table))
    change(context, StartTask, rows[1].id, due_at=None)
    change(context, table, made, **lease)
    assert swept(context) == []
    change(context, table, made, due_at=now())  # due again during the work: the lease's holder will run it
    assert swept(context) == []
    change(context, table, made, lease_until=after(-0.1), due_at=None)
    assert [job.subject for job in swept(context)] == [made]
    assert swept(context) == []


def test_owner_with_many_due_rows_delays_no_other_owner(
    context: WorkerContext, user: ApiUser, sandbox: Sandbox
) -> None:
    for owner, number, seconds in ((user, 600, 10), (make_user(context.database, "other-owner"), 1, 5)):
        task = make_start_task(context.database, owner, sandbox, due_at=after(-seconds))
        copies = [task.model_dump() | {"id": new_id(), "conversation_id": new_id()} for _ in range(number - 1)]
        with context.database.transaction() as session:
            session.execute(insert(StartTask), copies) if copies else None
    jobs = swept(context)
    assert StartConversation(task.id, NODE_ID) in jobs
    assert len(jobs) == MAX_OF_OWNER + 1


class TestPlacement:
    @pytest.fixture
    def sandbox_id(self, context: WorkerContext, user: ApiUser) -> str:
        """A sandbox for which no node had capacity."""
        change(context, Node, NODE_ID, capacity=0)
        sandbox_id = start(context, user)
        assert row(context, Sandbox, sandbox_id).node_id is None
        return sandbox_id

    def test_placement_waits_for_room(self, context: WorkerContext, sandbox_id: str) -> None:
        assert swept(context) == []
        change(context, Node, NODE_ID, capacity=1)
        assert StartSandbox(sandbox_id, NODE_ID) in swept(context)
        assert row(context, Sandbox, sandbox_id).node_id == NODE_ID

    @pytest.mark.parametrize("status", [NodeStatus.LOST, NodeStatus.CORDONED])
    def test_sandbox_waits_for_a_node_with_room(
        self, context: WorkerContext, sandbox_id: str, status: NodeStatus
    ) -> None:
        change(context, Node, NODE_ID, capacity=1, status=status)
        assert swept(context) == []
        assert row(context, Sandbox, sandbox_id).node_id is None

    def test_start_that_waits_for_a_sandbox_is_enqueued(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str
    ) -> None:
        task = make_start_task(context.database, user, row(context, Sandbox, sandbox_id))
        assert swept(context) == [StartConversation(task.id, NODE_ID)]

    @pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
    def test_pause_needs_no_room(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, desired: Desired
    ) -> None:
        task = make_start_task(context.database, user, row(context, Sandbox, sandbox_id), due_at=None)
        set_desired(context, sandbox_id, desired)
        assert swept(context) == [StartConversation(task.id, NODE_ID)]
        found = row(context, Sandbox, sandbox_id)
        assert (found.status, found.pause_kind, found.node_id) == (Status.PAUSED, "STOPPED", None)
        assert found.observed_generation == found.generation
        assert_at_rest(found)
        change(context, Node, NODE_ID, capacity=1)
        assert swept(context) == []
        set_desired(context, sandbox_id, Desired.RUNNING)
        sweep(context)
        deliver(context)
        assert row(context, Sandbox, sandbox_id).status == Status.RUNNING

    def test_resume_of_a_paused_sandbox_waits_for_room(self, context: WorkerContext, sandbox_id: str) -> None:
        for desired in (Desired.PAUSED, Desired.RUNNING):
            set_desired(context, sandbox_id, desired)
            assert swept(context) == []
        change(context, Node, NODE_ID, capacity=1)
        assert StartSandbox(sandbox_id, NODE_ID) in swept(context)

    def test_placed_sandbox_is_started(self, context: WorkerContext, sandbox_id: str) -> None:
        change(context, Node, NODE_ID, capacity=1)
        sweep(context)
        deliver(context)
        assert row(context, Sandbox, sandbox_id).status == Status.RUNNING


class TestPlacementOfDeletes:
    @pytest.fixture
    def sandbox_id(self, context: WorkerContext, user: ApiUser, engine: FakeEngine) -> str:
        """A sandbox that was deleted before a node had room for it, while the engine of `node-a` is down."""
        engine.down = True
        send_heartbeat(context)
        columns: dict[str, Any] = {"node_id": None, "desired": Desired.DELETED, "due_at": now()}
        return make_sandbox(context.database, user, status=Status.STARTING, **columns).id

    def test_delete_is_executed_by_another_node(
        self, context: WorkerContext, other_worker: WorkerContext, sandbox_id: str
    ) -> None:
        assert swept(context) == []
        sweep(other_worker)
        deliver(other_worker)
        found = row(context, Sandbox, sandbox_id)
        assert (found.status, found.node_id) == (Status.DELETED, "node-b")

    def test_delete_waits_for_the_only_node(self, context: WorkerContext, engine: FakeEngine, sandbox_id: str) -> None:
        assert swept(context) == []
        engine.down = False
        send_heartbeat(context)
        sweep(context)
        deliver(context)
        assert row(context, Sandbox, sandbox_id).status == Status.DELETED

    def test_delete_is_executed_by_a_cordoned_node(
        self, context: WorkerContext, engine: FakeEngine, sandbox_id: str
    ) -> None:
        engine.down = False
        change(context, Node, NODE_ID, status=NodeStatus.CORDONED)
        send_heartbeat(context)
        assert StartSandbox(sandbox_id, NODE_ID) in swept(context)

    def test_starts_are_placed_on_other_nodes_while_the_delete_waits(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser, sandbox_id: str
    ) -> None:
        started = make_sandbox(context.database, user, status=Status.STARTING, node_id=None)
        assert swept(context) == [StartSandbox(started.id, other_worker.settings.node)]
        assert row(context, Sandbox, sandbox_id).node_id is None


def test_expired_stored_responses_are_deleted(context: WorkerContext, user: ApiUser) -> None:
    kept: dict[str, Any] = {"owner_id": user.id, "operation": "POST /x", "fingerprint": "", "status": 200, "answer": {}}
    with context.database.transaction() as session:
        session.add(IdempotencyKey(key="old", expires_at=now(), **kept))
        session.add(IdempotencyKey(key="young", expires_at=after(60), **kept))
    assert swept(context) == []
    with context.database.reading() as session:
        assert session.exec(select(IdempotencyKey.key)).all() == ["young"]
