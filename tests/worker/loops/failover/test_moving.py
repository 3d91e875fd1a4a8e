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
from tests.worker.scenarios import assert_at_rest, change, deliver, hooked_context, row, running, set_desired
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


class TestResumeOnAnotherNode:
    @pytest.fixture
    def moved_sandbox(self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser) -> str:
        """A sandbox that ran on the lost node, and that its owner has resumed."""
        sandbox_id = running(context, user)
        lose(other_worker)
        set_desired(other_worker, sandbox_id, Desired.RUNNING)
        lose(other_worker)
        return sandbox_id

    def test_resume_on_another_node_keeps_the_id(
        self, other_worker: WorkerContext, moved_sandbox: str, other_engine: FakeEngine
    ) -> None:
        found = row(other_worker, Sandbox, moved_sandbox)
        assert (found.status, found.node_id, found.ready_at) == (Status.STARTING, "node-b", None)
        assert NODE_ID in (found.detail or "")
        assert jobs(other_worker) == [ResumeSandbox(moved_sandbox, "node-b")]
        deliver(other_worker)
        found = row(other_worker, Sandbox, moved_sandbox)
        assert (found.status, found.reason) == (Status.RUNNING, None)
        assert_at_rest(found)
        assert list(other_engine.containers) == [container_name(moved_sandbox)]
        with other_worker.database.reading() as session:
            reasons = [transition.reason for transition in sandbox_queries.transitions(session, moved_sandbox)]
        assert reasons == [None, None, Reason.NODE_LOST, None, None]

    def test_attempts_on_the_lost_node_do_not_count(
        self,
        context: WorkerContext,
        other_worker: WorkerContext,
        user: ApiUser,
        engine: FakeEngine,
        other_engine: FakeEngine,
    ) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, Desired.STOPPED)
        reconcile(context, sandbox_id)
        set_desired(context, sandbox_id, Desired.RUNNING)
        engine.refuse["start"] = context.settings.max_attempts - 1
        while engine.refuse["start"]:
            reconcile(context, sandbox_id)
        for _ in range(2):
            lose(other_worker)
            set_desired(other_worker, sandbox_id, Desired.RUNNING)
        lose(other_worker)
        other_engine.refuse["start"] = 1
        reconcile(other_worker, sandbox_id)
        assert row(other_worker, Sandbox, sandbox_id).status == Status.STARTING
        reconcile(other_worker, sandbox_id)
        found = row(other_worker, Sandbox, sandbox_id)
        assert (found.node_id, found.status) == ("node-b", Status.RUNNING)

    def test_late_message_is_not_executed_by_the_old_node(
        self, context: WorkerContext, other_worker: WorkerContext, moved_sandbox: str, engine: FakeEngine
    ) -> None:
        engine.containers.clear()
        reconcile(context, moved_sandbox)
        assert engine.containers == {}
        assert row(context, Sandbox, moved_sandbox).status == Status.STARTING

    def test_resume_waits_for_room_on_another_node(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser
    ) -> None:
        sandbox_id = running(context, user)
        lose(other_worker)
        change(other_worker, Node, "node-b", capacity=0)
        set_desired(other_worker, sandbox_id, Desired.RUNNING)
        lose(other_worker)
        assert row(other_worker, Sandbox, sandbox_id).node_id == NODE_ID
        change(other_worker, Node, "node-b", capacity=1)
        lose(other_worker)
        assert row(other_worker, Sandbox, sandbox_id).node_id == "node-b"

    def test_node_that_is_back_reaps_before_it_is_ready(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser, moved_sandbox: str, engine: FakeEngine
    ) -> None:
        deliver(other_worker)
        kept = container_name(make_sandbox(context.database, user).id)
        engine.containers[kept] = engine.containers[container_name(moved_sandbox)]
        engine.volumes[kept] = engine.volumes[container_name(moved_sandbox)]
        engine.before["remove"] = lambda _name: self.assert_lost(context)
        send_heartbeat(context)
        assert status_of(context) == NodeStatus.READY
        assert (set(engine.containers), set(engine.volumes)) == ({kept}, {kept})
        assert row(context, Sandbox, moved_sandbox).status == Status.RUNNING

    def test_node_is_not_back_before_the_last_move_is_reaped(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        lose(other_worker)
        set_desired(other_worker, sandbox_id, Desired.RUNNING)
        # The sandbox is moved after the heartbeat has read the stale containers, and before it writes.
        beating, _ = hooked_context(context, 4, lambda: lose(other_worker))
        send_heartbeat(beating)
        assert status_of(context) == NodeStatus.LOST
        assert container_name(sandbox_id) in engine.containers
        send_heartbeat(context)
        assert status_of(context) == NodeStatus.READY
        assert engine.containers == {}

    def test_sandbox_moves_back_when_the_other_node_is_lost(
        self, context: WorkerContext, other_worker: WorkerContext, moved_sandbox: str, engine: FakeEngine
    ) -> None:
        deliver(other_worker)
        send_heartbeat(context)
        context.publisher.jobs.clear()  # type: ignore[attr-defined]
        back = replace(context, settings=context.settings.model_copy(update={"node_lost_seconds": LIMIT}))
        lose(back)
        set_desired(back, moved_sandbox, Desired.RUNNING)
        lose(back)
        assert row(back, Sandbox, moved_sandbox).node_id == NODE_ID
        deliver(back)
        send_heartbeat(context)
        resync(context)
        assert engine.containers[container_name(moved_sandbox)].state == ContainerState.RUNNING
        with context.database.reading() as session:
            assert [left.node_id for left in session.exec(select(StaleContainer)).all()] == ["node-b"]

    def assert_lost(self, context: WorkerContext) -> None:
        assert status_of(context) == NodeStatus.LOST


def test_sandbox_that_runs_on_a_node_that_is_back_shows_as_running(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser
) -> None:
    sandbox_id = running(context, user)
    lose(other_worker)
    assert row(context, Sandbox, sandbox_id).status == Status.ERROR
    send_heartbeat(context)
    resync(context)
    deliver(context)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.RUNNING, None)


@pytest.mark.parametrize(("state", "status", "reason"), FOUND)
def test_sandbox_that_stopped_with_its_node_has_the_reason_and_keeps_its_files(
    context: WorkerContext,
    other_worker: WorkerContext,
    user: ApiUser,
    engine: FakeEngine,
    state: ContainerState,
    status: Status,
    reason: Reason,
) -> None:
    sandbox_id = running(context, user)
    name = container_name(sandbox_id)
    engine.servers[name].files["/workspace/notes"] = b"kept"
    lose(other_worker)
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
