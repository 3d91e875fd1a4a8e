"""A silent node is marked lost, and so are its sandboxes."""

from datetime import timedelta
from typing import Any, NoReturn
from unittest.mock import Mock

import pytest

from shared.clock import after, now
from shared.models import Node, Sandbox, StartTask
from shared.nodes import registry as node_registry
from shared.queue.jobs import StartConversation
from shared.sandboxes import failover
from shared.sandboxes.failover import LeaseRequest, LostNode
from shared.states import Desired, NodeStatus, Reason, Stage, Status
from tests.factories import NODE_ID, ApiUser, make_sandbox, make_start_task
from tests.fakes.engine import FakeEngine
from tests.worker.loops.failover.nodes import LIMIT, Clock, check_for, jobs, lose, status_of
from tests.worker.scenarios import assert_at_rest, change, deliver, row, running, set_desired
from worker.context import WorkerContext
from worker.loops.failover import NodeFailureDetector, fail_over
from worker.loops.heartbeat import send_heartbeat
from worker.loops.sweep import sweep
from worker.sandboxes.reconciler import reconcile


class TestDetector:
    def test_silent_node_is_lost_after_the_limit_and_not_before(
        self, other_worker: WorkerContext, clock: Clock
    ) -> None:
        detector = NodeFailureDetector(other_worker, clock)
        check_for(detector, clock, LIMIT - 1)
        assert status_of(other_worker) == NodeStatus.READY
        clock.seconds += 1
        detector.check()
        found = row(other_worker, Node, NODE_ID)
        assert (found.status, "last heard of" in (found.detail or "")) == (NodeStatus.LOST, True)
        assert row(other_worker, Node, "node-b").status == NodeStatus.READY

    def test_heartbeat_restarts_the_limit(
        self, context: WorkerContext, other_worker: WorkerContext, clock: Clock
    ) -> None:
        detector = NodeFailureDetector(other_worker, clock)
        for _ in range(3):
            check_for(detector, clock, LIMIT - 1)
            send_heartbeat(context)
        assert status_of(other_worker) == NodeStatus.READY

    def test_pause_of_the_detector_does_not_make_other_nodes_silent(
        self, other_worker: WorkerContext, clock: Clock
    ) -> None:
        change(other_worker, Node, NODE_ID, heartbeat_at=now() - timedelta(hours=1))
        detector = NodeFailureDetector(other_worker, clock)
        detector.check()
        clock.seconds += 10 * LIMIT
        detector.check()
        assert status_of(other_worker) == NodeStatus.READY

    def test_read_only_database_makes_no_node_silent(self, other_worker: WorkerContext, clock: Clock) -> None:
        detector = NodeFailureDetector(other_worker, clock)
        check_for(detector, clock, 10 * LIMIT, is_writable=False)
        # Once the store accepts writes again, the heartbeats of other nodes arrive within one heartbeat interval.
        check_for(detector, clock, other_worker.settings.heartbeat_seconds)
        assert status_of(other_worker) == NodeStatus.READY
        check_for(detector, clock, LIMIT)
        assert status_of(other_worker) == NodeStatus.LOST

    def test_node_without_a_heartbeat_since_a_restore_is_not_failed_over(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser
    ) -> None:
        """Its worker may start later than this one, and a resume elsewhere would abandon the restored files."""
        sandbox_id = running(context, user)
        with other_worker.database.transaction() as session:
            node_registry.mark_unreported(session)
        lose(other_worker)
        assert row(other_worker, Sandbox, sandbox_id).status == Status.RUNNING
        send_heartbeat(context)
        assert status_of(other_worker) == NodeStatus.READY
        lose(other_worker)
        assert row(other_worker, Sandbox, sandbox_id).reason == Reason.NODE_LOST

    def test_lost_node_without_sandboxes_is_watched_no_longer(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser
    ) -> None:
        def watched() -> set[str]:
            return set(node_registry.heartbeats(other_worker.database.fetch))

        make_sandbox(other_worker.database, user, status=Status.DELETED)
        assert watched() == {NODE_ID, "node-b"}
        lose(other_worker)
        assert watched() == {"node-b"}
        send_heartbeat(context)
        assert watched() == {NODE_ID, "node-b"}
        make_sandbox(other_worker.database, user, status=Status.PAUSED)
        lose(other_worker)
        assert watched() == {NODE_ID, "node-b"}

    def test_cordon_outlives_the_loss(self, context: WorkerContext, other_worker: WorkerContext) -> None:
        change(other_worker, Node, NODE_ID, status=NodeStatus.CORDONED)
        lose(other_worker)
        found = row(other_worker, Node, NODE_ID)
        assert (found.status, bool(found.detail)) == (NodeStatus.CORDONED, True)
        send_heartbeat(context)
        assert row(other_worker, Node, NODE_ID).detail is None

    def test_engine_that_is_down_stops_the_heartbeat(self, context: WorkerContext, engine: FakeEngine) -> None:
        before = row(context, Node, NODE_ID).heartbeat_at
        engine.down = True
        send_heartbeat(context)
        assert row(context, Node, NODE_ID).heartbeat_at == before
        engine.down = False
        send_heartbeat(context)
        assert row(context, Node, NODE_ID).heartbeat_at > before


class TestLoss:
    @pytest.mark.parametrize(
        ("status", "columns", "lost"),
        [
            (Status.RUNNING, {}, True),
            (Status.STARTING, {}, True),
            (Status.RUNNING, {"desired": Desired.PAUSED, "generation": 2, "due_at": now()}, True),
            (Status.RUNNING, {"lease_owner": "worker-1", "lease_until": -1}, True),
            (Status.RUNNING, {"lease_owner": "worker-1", "lease_until": 10}, False),
            (Status.PAUSED, {}, False),
            (Status.PAUSED, {"desired": Desired.RUNNING, "generation": 2, "due_at": now()}, True),
            (Status.ERROR, {}, False),
            (Status.ERROR, {"generation": 2, "due_at": now()}, True),
            (Status.RUNNING, {"desired": Desired.DELETED, "generation": 2, "due_at": now()}, False),
            (Status.DELETING, {"due_at": now()}, False),
            (Status.DELETED, {}, False),
        ],
    )
    def test_sandbox_on_a_lost_node_is_an_error_if_it_was_to_run(
        self, other_worker: WorkerContext, user: ApiUser, status: Status, columns: dict[str, Any], lost: bool
    ) -> None:
        lease = {name: after(seconds) for name, seconds in columns.items() if name == "lease_until"}
        sandbox = make_sandbox(other_worker.database, user, status=status, **(columns | lease))
        lose(other_worker)
        found = row(other_worker, Sandbox, sandbox.id)
        assert ((found.status, found.reason) == (Status.ERROR, Reason.NODE_LOST)) == lost
        assert found.node_id == NODE_ID
        if lost:
            assert NODE_ID in (found.detail or "")
            assert (found.lease_owner, found.lease_until, found.lost_generation) == (None, None, found.generation)
            # An unobserved desired state stays due, for the node when it is back.
            assert (found.due_at is not None) == (found.generation != found.observed_generation)
            assert found.observed_generation == sandbox.observed_generation
        else:
            assert found.status == status

    def test_loss_is_recorded_once(self, other_worker: WorkerContext, user: ApiUser) -> None:
        sandbox = make_sandbox(other_worker.database, user, desired=Desired.PAUSED, generation=2, due_at=now())
        lose(other_worker)
        before = row(other_worker, Sandbox, sandbox.id)
        lose(other_worker)
        assert row(other_worker, Sandbox, sandbox.id).fence == before.fence

    def test_loss_that_is_recorded_costs_no_transaction(
        self, other_worker: WorkerContext, user: ApiUser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each worker of a cluster checks each lost node every second."""
        make_sandbox(other_worker.database, user)
        lose(other_worker)
        lost = LostNode(NODE_ID, row(other_worker, Node, NODE_ID).heartbeat_at)
        transaction = Mock()
        monkeypatch.setattr(other_worker.database, "transaction", transaction)
        fail_over(other_worker, lost)
        assert transaction.call_count == 0

    def test_late_worker_does_not_lock_the_node(
        self, other_worker: WorkerContext, user: ApiUser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sandbox = make_sandbox(other_worker.database, user)
        lose(other_worker)
        lost = LostNode(NODE_ID, row(other_worker, Node, NODE_ID).heartbeat_at)
        monkeypatch.setattr(node_registry, "mark_lost", forbid)
        with other_worker.database.transaction() as session:
            assert failover.fail_over(session, lost, sandbox.id, LeaseRequest("worker-c", 15, now())) is None

    @pytest.mark.parametrize("desired", sorted(Desired))
    def test_sandbox_that_waits_for_its_node_or_for_room_costs_no_transaction(
        self, other_worker: WorkerContext, user: ApiUser, desired: Desired
    ) -> None:
        change(other_worker, Node, "node-b", capacity=0)
        sandbox = make_sandbox(other_worker.database, user)
        lose(other_worker)
        set_desired(other_worker, sandbox.id, desired)
        lose(other_worker)
        with other_worker.database.reading() as session:
            assert failover.find_actionable(session, NODE_ID) == []
            change(other_worker, Node, "node-b", capacity=1)
        with other_worker.database.reading() as session:
            is_moved = desired == Desired.RUNNING
            assert failover.find_actionable(session, NODE_ID) == [sandbox.id] * is_moved

    @pytest.mark.parametrize(
        ("first", "then", "status"),
        [
            (Desired.RUNNING, Desired.PAUSED, Status.PAUSED),
            (Desired.RUNNING, Desired.STOPPED, Status.PAUSED),
            (Desired.PAUSED, Desired.RUNNING, Status.RUNNING),
        ],
    )
    def test_desired_state_from_before_the_loss_is_reconciled_after_the_return(
        self,
        context: WorkerContext,
        other_worker: WorkerContext,
        user: ApiUser,
        first: Desired,
        then: Desired,
        status: Status,
    ) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, first)
        reconcile(context, sandbox_id)
        set_desired(context, sandbox_id, then)
        lose(other_worker)
        assert row(other_worker, Sandbox, sandbox_id).reason == Reason.NODE_LOST
        send_heartbeat(context)
        sweep(context)
        deliver(context)
        found = row(context, Sandbox, sandbox_id)
        assert (found.status, found.reason, found.observed_generation) == (status, None, found.generation)
        assert_at_rest(found)

    def test_refusal_of_the_engine_is_shown_until_the_node_is_lost_again(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, Desired.STOPPED)
        engine.refuse = {"stop": 1000}
        lose(other_worker)
        marked = row(other_worker, Sandbox, sandbox_id).detail
        reconcile(context, sandbox_id)
        assert row(other_worker, Sandbox, sandbox_id).detail == marked
        send_heartbeat(context)
        change(context, Sandbox, sandbox_id, due_at=now())
        reconcile(context, sandbox_id)
        found = row(context, Sandbox, sandbox_id)
        assert (found.reason, "stop refused" in (found.detail or "")) == (Reason.NODE_LOST, True)
        assert "is lost" not in (found.detail or "")
        lose(other_worker)
        assert (row(other_worker, Sandbox, sandbox_id).detail or "").startswith(f"the node {NODE_ID} is lost")

    def test_start_task_waiting_for_a_lost_node_s_sandbox_is_enqueued(
        self, other_worker: WorkerContext, user: ApiUser
    ) -> None:
        sandbox = make_sandbox(other_worker.database, user, status=Status.STARTING)
        task = make_start_task(other_worker.database, user, sandbox, stage=Stage.WAITING_FOR_SANDBOX, due_at=None)
        lose(other_worker)
        assert StartConversation(task.id, "node-b") in jobs(other_worker)
        deliver(other_worker)
        found = row(other_worker, StartTask, task.id)
        assert (found.stage, found.reason) == (Stage.ERROR, Reason.SANDBOX_FAILED)

    def test_start_task_whose_message_was_lost_is_enqueued_again(
        self, other_worker: WorkerContext, user: ApiUser
    ) -> None:
        sandbox = make_sandbox(other_worker.database, user, status=Status.ERROR)
        task = make_start_task(other_worker.database, user, sandbox)
        lose(other_worker)
        assert StartConversation(task.id, "node-b") in jobs(other_worker)

    def test_sandbox_of_a_node_that_is_back_is_not_failed_over(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser
    ) -> None:
        lose(other_worker)
        send_heartbeat(context)
        sandbox = make_sandbox(other_worker.database, user)
        lost = LostNode(NODE_ID, now() - timedelta(minutes=1))  # as another worker read it before the heartbeat
        fail_over(other_worker, lost)
        assert row(other_worker, Sandbox, sandbox.id).status == Status.RUNNING


def forbid(*_: object, **__: object) -> NoReturn:
    pytest.fail("the call must not happen")
