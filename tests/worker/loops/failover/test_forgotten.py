"""A lost node that an operator has tombstoned (`nodes forget`)."""

from contextlib import nullcontext
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from shared.clock import after, now
from shared.errors import Conflict
from shared.models import Node, Sandbox, StartTask
from shared.nodes import registry as node_registry
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.failover import LostNode
from shared.states import TRANSITIONS, Desired, NodeStatus, Reason, Stage, Status
from tests.factories import NODE_ID, ApiUser, make_sandbox, make_start_task
from tests.fakes.engine import FakeEngine
from tests.worker.loops.failover.nodes import lose, status_of, tombstone
from tests.worker.scenarios import assert_at_rest, change, deliver, row, running, set_desired
from worker.context import WorkerContext
from worker.loops.failover import fail_over
from worker.loops.heartbeat import send_heartbeat
from worker.loops.resync import resync
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


class TestForgottenNode:
    """The operator declares that the node never comes back."""

    @pytest.fixture(autouse=True)
    def _first_choice(self, other_worker: WorkerContext) -> None:
        change(other_worker, Node, NODE_ID, capacity=200)

    @pytest.mark.parametrize("desired", sorted(set(Desired) - {Desired.DELETED}))
    @pytest.mark.parametrize("status", sorted(set(Status) - {Status.DELETING, Status.DELETED}))
    def test_sandboxes_of_a_forgotten_node_fail(
        self, other_worker: WorkerContext, user: ApiUser, status: Status, desired: Desired
    ) -> None:
        sandbox = make_sandbox(other_worker.database, user, status=status, desired=desired)
        task = make_start_task(other_worker.database, user, sandbox, stage=Stage.WAITING_FOR_SANDBOX, due_at=None)
        lose_and_tombstone(other_worker)
        found = row(other_worker, Sandbox, sandbox.id)
        assert (found.status, found.reason, found.node_id) == (Status.ERROR, Reason.NODE_LOST, NODE_ID)
        assert "files are lost" in (found.detail or "")
        assert_at_rest(found)
        deliver(other_worker)
        assert row(other_worker, StartTask, task.id).stage == Stage.ERROR

    @pytest.mark.parametrize("status", sorted(set(Status) - {Status.DELETED}))
    def test_deleted_sandbox_becomes_a_tombstone(
        self, other_worker: WorkerContext, user: ApiUser, status: Status
    ) -> None:
        columns: dict[str, Any] = {"desired": Desired.DELETED, "generation": 2, "due_at": now()}
        sandbox = make_sandbox(other_worker.database, user, status=status, **columns)
        lose_and_tombstone(other_worker)
        found = row(other_worker, Sandbox, sandbox.id)
        assert (found.status, found.node_id, found.observed_generation) == (Status.DELETED, None, 2)
        assert_at_rest(found)
        with other_worker.database.reading() as session:
            path = [status, *(transition.to_status for transition in sandbox_queries.transitions(session, sandbox.id))]
        assert all(after_ in TRANSITIONS[Status(before)] for before, after_ in pairwise(path))

    def test_leased_sandbox_waits_for_its_lease(self, other_worker: WorkerContext, user: ApiUser) -> None:
        columns: dict[str, Any] = {"desired": Desired.DELETED, "lease_owner": "w", "lease_until": after(10)}
        sandbox = make_sandbox(other_worker.database, user, **columns)
        lose_and_tombstone(other_worker)
        assert row(other_worker, Sandbox, sandbox.id).status == Status.RUNNING
        change(other_worker, Sandbox, sandbox.id, lease_until=after(-1))
        lose(other_worker)
        assert row(other_worker, Sandbox, sandbox.id).status == Status.DELETED

    def test_resume_creates_a_new_container_and_delete_removes_it(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser
    ) -> None:
        resumed, deleted = running(context, user), running(context, user)
        lose_and_tombstone(other_worker)
        set_desired(other_worker, resumed, Desired.RUNNING)
        set_desired(other_worker, deleted, Desired.DELETED)
        lose(other_worker)
        deliver(other_worker)
        found = row(other_worker, Sandbox, resumed)
        assert (found.status, found.node_id) == (Status.RUNNING, "node-b")
        assert row(other_worker, Sandbox, deleted).status == Status.DELETED

    @pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
    def test_sandbox_that_was_paused_is_paused_again(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser, desired: Desired
    ) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, desired)
        reconcile(context, sandbox_id)
        paused = row(context, Sandbox, sandbox_id)
        lose_and_tombstone(other_worker)
        assert row(context, Sandbox, sandbox_id).reason == Reason.NODE_LOST
        send_heartbeat(context)
        resync(context)
        deliver(context)
        found = row(context, Sandbox, sandbox_id)
        assert (found.status, found.reason, found.pause_kind) == (Status.PAUSED, None, paused.pause_kind)
        assert_at_rest(found)

    def test_node_that_is_back_removes_stale_containers(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        resumed, deleted, left = (running(context, user) for _ in range(3))
        set_desired(other_worker, deleted, Desired.DELETED)
        lose_and_tombstone(other_worker)
        set_desired(other_worker, resumed, Desired.RUNNING)
        lose(other_worker)
        deliver(other_worker)
        statuses: list[str] = []
        engine.before["remove"] = lambda _name: statuses.append(status_of(context))
        send_heartbeat(context)
        assert statuses == [NodeStatus.LOST] * 2
        assert set(engine.containers) == set(engine.volumes) == {container_name(left)}
        found = row(context, Node, NODE_ID)
        assert (found.status, found.forgotten_at) == (NodeStatus.READY, None)
        resync(context)
        deliver(context)
        assert row(context, Sandbox, left).status == Status.RUNNING
        assert row(context, Sandbox, deleted).status == Status.DELETED

    def test_node_with_a_heartbeat_before_the_tombstones_keeps_its_sandboxes(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser
    ) -> None:
        sandbox_id = running(context, user)
        set_desired(other_worker, sandbox_id, Desired.DELETED)
        lose(other_worker)
        change(other_worker, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=1))
        tombstone(other_worker)
        lost = LostNode(NODE_ID, row(other_worker, Node, NODE_ID).heartbeat_at)
        send_heartbeat(context)
        fail_over(other_worker, lost)
        assert row(other_worker, Sandbox, sandbox_id).status == Status.RUNNING
        reconcile(context, sandbox_id)
        assert row(other_worker, Sandbox, sandbox_id).status == Status.DELETED

    def test_empty_node_is_no_longer_checked(self, other_worker: WorkerContext) -> None:
        lose_and_tombstone(other_worker)
        assert set(node_registry.heartbeats(other_worker.database.fetch)) == {"node-b"}

    @pytest.mark.parametrize(("seconds", "silent"), [(60, True), (0, False), (-3600, True)])
    @pytest.mark.parametrize("marked", [True, False])
    @pytest.mark.parametrize("status", sorted(NodeStatus))
    def test_node_is_tombstoned_only_if_lost(
        self, other_worker: WorkerContext, seconds: int, silent: bool, marked: bool, status: NodeStatus
    ) -> None:
        at = now() - timedelta(seconds=seconds)  # a later one: the database's clock was set back since
        change(other_worker, Node, NODE_ID, status=status, detail="away" if marked else None, heartbeat_at=at)
        with nullcontext() if silent and marked else pytest.raises(Conflict, match="not lost"):
            tombstone(other_worker)
        assert (row(other_worker, Node, NODE_ID).forgotten_at is not None) == (silent and marked)


def lose_and_tombstone(other_worker: WorkerContext) -> None:
    """Mark `node-a` lost, tombstone it, and handle its sandboxes."""
    lose(other_worker)
    change(other_worker, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=1))
    tombstone(other_worker)
    lose(other_worker)
