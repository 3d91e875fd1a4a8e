"""A lost node's sandboxes start on another node; a node that is back removes its stale containers."""

from dataclasses import replace

import pytest
from sqlmodel import select

from shared.models import Node, Sandbox, StaleContainer
from shared.queue.jobs import ResumeSandbox
from shared.sandboxes import queries as sandbox_queries
from shared.states import Desired, NodeStatus, Reason, Status
from tests.factories import NODE_ID, ApiUser, make_sandbox
from tests.fakes.engine import FakeEngine
from tests.worker.loops.failover.nodes import LIMIT, jobs, lose, status_of
from tests.worker.scenarios import assert_at_rest, change, deliver, punctuated, row, running, set_desired
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.heartbeat import send_heartbeat
from worker.loops.resync import resync
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

# The states of a container on a node that is back, each with the resulting status and reason of its sandbox.
FOUND = [
    (ContainerState.EXITED, Status.ERROR, Reason.EXIT_CODE),
    (ContainerState.DEAD, Status.ERROR, Reason.EXIT_CODE),
    (ContainerState.ABSENT, Status.ERROR, Reason.CONTAINER_MISSING),
    (ContainerState.PAUSED, Status.PAUSED, Reason.PAUSED_OUTSIDE),
]


class TestResumeElsewhere:
    @pytest.fixture
    def moved(self, context: WorkerContext, other: WorkerContext, user: ApiUser) -> str:
        """A sandbox that ran on the lost node, and that its owner has resumed."""
        sandbox_id = running(context, user)
        lose(other)
        set_desired(other, sandbox_id, Desired.RUNNING)
        lose(other)
        return sandbox_id

    def test_resume_on_another_node_keeps_the_id(
        self, other: WorkerContext, moved: str, other_engine: FakeEngine
    ) -> None:
        found = row(other, Sandbox, moved)
        assert (found.status, found.node_id, found.ready_at) == (Status.STARTING, "node-b", None)
        assert NODE_ID in (found.detail or "")
        assert jobs(other) == [ResumeSandbox(moved, "node-b")]
        deliver(other)
        found = row(other, Sandbox, moved)
        assert (found.status, found.reason) == (Status.RUNNING, None)
        assert_at_rest(found)
        assert list(other_engine.containers) == [container_name(moved)]
        with other.database.reading() as session:
            reasons = [move.reason for move in sandbox_queries.transitions(session, moved)]
        assert reasons == [None, None, Reason.NODE_LOST, None, None]

    def test_attempts_on_the_lost_node_do_not_count(
        self, context: WorkerContext, other: WorkerContext, user: ApiUser, engine: FakeEngine, other_engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, Desired.STOPPED)
        reconcile(context, sandbox_id)
        set_desired(context, sandbox_id, Desired.RUNNING)
        engine.refuse["start"] = context.settings.max_attempts - 1
        while engine.refuse["start"]:
            reconcile(context, sandbox_id)
        for _ in range(2):
            lose(other)
            set_desired(other, sandbox_id, Desired.RUNNING)
        lose(other)
        other_engine.refuse["start"] = 1
        reconcile(other, sandbox_id)
        assert row(other, Sandbox, sandbox_id).status == Status.STARTING
        reconcile(other, sandbox_id)
        found = row(other, Sandbox, sandbox_id)
        assert (found.node_id, found.status) == ("node-b", Status.RUNNING)

    def test_late_message_is_not_executed_by_the_old_node(
        self, context: WorkerContext, other: WorkerContext, moved: str, engine: FakeEngine
    ) -> None:
        engine.containers.clear()
        reconcile(context, moved)
        assert engine.containers == {}
        assert row(context, Sandbox, moved).status == Status.STARTING

    def test_resume_waits_for_room_on_another_node(
        self, context: WorkerContext, other: WorkerContext, user: ApiUser
    ) -> None:
        sandbox_id = running(context, user)
        lose(other)
        change(other, Node, "node-b", capacity=0)
        set_desired(other, sandbox_id, Desired.RUNNING)
        lose(other)
        assert row(other, Sandbox, sandbox_id).node_id == NODE_ID
        change(other, Node, "node-b", capacity=1)
        lose(other)
        assert row(other, Sandbox, sandbox_id).node_id == "node-b"

    def test_node_that_is_back_reaps_before_it_is_ready(
        self, context: WorkerContext, other: WorkerContext, user: ApiUser, moved: str, engine: FakeEngine
    ) -> None:
        deliver(other)
        kept = container_name(make_sandbox(context.database, user).id)
        engine.containers[kept] = engine.containers[container_name(moved)]
        engine.volumes[kept] = engine.volumes[container_name(moved)]
        engine.before["remove"] = lambda _name: self.assert_lost(context)
        send_heartbeat(context)
        assert status_of(context) == NodeStatus.READY
        assert (set(engine.containers), set(engine.volumes)) == ({kept}, {kept})
        assert row(context, Sandbox, moved).status == Status.RUNNING

    def test_node_is_not_back_before_the_last_move_is_reaped(
        self, context: WorkerContext, other: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        lose(other)
        set_desired(other, sandbox_id, Desired.RUNNING)
        # The sandbox is moved after the heartbeat has read the stale containers, and before it writes.
        beating, _ = punctuated(context, 4, lambda: lose(other))
        send_heartbeat(beating)
        assert status_of(context) == NodeStatus.LOST
        assert container_name(sandbox_id) in engine.containers
        send_heartbeat(context)
        assert status_of(context) == NodeStatus.READY
        assert engine.containers == {}

    def test_sandbox_moves_back_when_the_other_node_is_lost(
        self, context: WorkerContext, other: WorkerContext, moved: str, engine: FakeEngine
    ) -> None:
        deliver(other)
        send_heartbeat(context)
        context.publisher.jobs.clear()  # type: ignore[attr-defined]
        back = replace(context, settings=context.settings.model_copy(update={"node_lost_seconds": LIMIT}))
        lose(back)
        set_desired(back, moved, Desired.RUNNING)
        lose(back)
        assert row(back, Sandbox, moved).node_id == NODE_ID
        deliver(back)
        send_heartbeat(context)
        resync(context)
        assert engine.containers[container_name(moved)].state == ContainerState.RUNNING
        with context.database.reading() as session:
            assert [left.node_id for left in session.exec(select(StaleContainer)).all()] == ["node-b"]

    def assert_lost(self, context: WorkerContext) -> None:
        assert status_of(context) == NodeStatus.LOST


def test_sandbox_that_runs_on_a_node_that_is_back_shows_as_running(
    context: WorkerContext, other: WorkerContext, user: ApiUser
) -> None:
    sandbox_id = running(context, user)
    lose(other)
    assert row(context, Sandbox, sandbox_id).status == Status.ERROR
    send_heartbeat(context)
    resync(context)
    deliver(context)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.RUNNING, None)


@pytest.mark.parametrize(("state", "status", "reason"), FOUND)
def test_sandbox_that_stopped_with_its_node_has_the_reason_and_keeps_its_files(
    context: WorkerContext,
    other: WorkerContext,
    user: ApiUser,
    engine: FakeEngine,
    state: ContainerState,
    status: Status,
    reason: Reason,
) -> None:
    sandbox_id = running(context, user)
    name = container_name(sandbox_id)
    engine.servers[name].files["/workspace/notes"] = b"kept"
    lose(other)
    engine.containers[name].state = state
    if state == ContainerState.ABSENT:
        del engine.containers[name]
    send_heartbeat(context)
    resync(context)
    deliver(context)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (status, reason)
    assert "another node" not in (found.detail or "")
    assert_at_rest(found)
    resync(context)
    assert_at_rest(row(context, Sandbox, sandbox_id))
    set_desired(context, sandbox_id, Desired.RUNNING)
    reconcile(context, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason, found.node_id) == (Status.RUNNING, None, NODE_ID)
    assert engine.servers[name].files["/workspace/notes"] == b"kept"
