"""Drains of lost and deleted nodes."""

from datetime import timedelta

from shared.admin.nodes import drain_node
from shared.clock import now
from shared.models import Node
from shared.sandboxes.drain import DrainProgress, drain_progress
from tests.factories import NODE_ID, ApiUser
from tests.fakes.engine import FakeEngine
from tests.worker.loops.failover.nodes import lose, tombstone
from tests.worker.scenarios import change, deliver, running
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.heartbeat import send_heartbeat
from worker.loops.sweep import sweep
from worker.sandboxes.container_spec import container_name


class TestDrain:
    def test_drain_of_a_lost_node_stops_its_sandboxes_when_it_is_back(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        lose(other_worker)
        drain_node(other_worker.database.transaction, NODE_ID)
        assert progress(other_worker) == DrainProgress(awaited=[sandbox_id])
        lose(other_worker)
        send_heartbeat(context)
        sweep(context)
        deliver(context)
        assert engine.containers[container_name(sandbox_id)].state == ContainerState.EXITED
        assert progress(other_worker) == DrainProgress(resting=[sandbox_id])

    def test_drain_of_a_forgotten_node_waits_for_nothing(
        self, context: WorkerContext, other_worker: WorkerContext, user: ApiUser
    ) -> None:
        sandbox_id = running(context, user)
        lose(other_worker)
        drain_node(other_worker.database.transaction, NODE_ID)
        change(other_worker, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=1))
        tombstone(other_worker)
        lose(other_worker)
        assert progress(other_worker) == DrainProgress(resting=[sandbox_id])


def progress(other_worker: WorkerContext) -> DrainProgress:
    with other_worker.database.reading() as session:
        return drain_progress(session, NODE_ID)
