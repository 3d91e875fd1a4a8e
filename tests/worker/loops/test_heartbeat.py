"""The node's heartbeat."""

import signal
from datetime import timedelta
from functools import partial

import pytest
from sqlalchemy import event

from shared.clock import now
from shared.errors import Conflict
from shared.models import Node, Sandbox, StaleContainer
from shared.nodes import placement
from shared.states import NodeStatus
from tests.factories import NODE_ID, ApiUser, make_node
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.scenarios import change, row, running
from worker.__main__ import send_heartbeat_or_exit
from worker.context import WorkerContext
from worker.engine.requirements import find_disk_shortage
from worker.loops.failover import NodeFailureDetector
from worker.loops.heartbeat import send_heartbeat
from worker.sandboxes.container_spec import container_name
from worker.startup import await_store


def node_after_heartbeat(context: WorkerContext) -> Node:
    send_heartbeat(context)
    return row(context, Node, NODE_ID)


def test_first_heartbeat_creates_the_node(context: WorkerContext) -> None:
    with context.database.transaction() as session:
        session.delete(session.get_one(Node, NODE_ID))
    found = node_after_heartbeat(context)
    assert (found.status, found.capacity, found.detail) == (NodeStatus.READY, context.settings.node_capacity, None)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_first_heartbeat_waits_until_the_database_can_be_written(
    context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker ended with a traceback while the database's disk was full."""
    change(context, Node, NODE_ID, status=NodeStatus.LOST)
    engine, refuse = context.database.engine, "PRAGMA query_only = 1"
    engine.dispose()
    event.listen(engine, "connect", takes_no_writes := lambda connection, _: connection.execute(refuse))

    def repair(_pause: float) -> None:
        event.remove(engine, "connect", takes_no_writes)
        engine.dispose()

    monkeypatch.setattr("shared.db.waiting.time.sleep", repair)
    await_store(context, partial(send_heartbeat, context))
    assert row(context, Node, NODE_ID).status == NodeStatus.READY


def test_node_without_its_engine_is_lost_until_it_is_back(context: WorkerContext, engine: FakeEngine) -> None:
    engine.down = True
    found = node_after_heartbeat(context)
    assert found.status == NodeStatus.LOST
    assert "the engine does not respond" in (found.detail or "")
    engine.down = False
    found = node_after_heartbeat(context)
    assert (found.status, found.detail) == (NodeStatus.READY, None)


@pytest.mark.parametrize("down", [True, False])
def test_cordoned_node_stays_cordoned(context: WorkerContext, engine: FakeEngine, down: bool) -> None:
    change(context, Node, NODE_ID, status=NodeStatus.CORDONED)
    engine.down = down
    assert node_after_heartbeat(context).status == NodeStatus.CORDONED


def test_heartbeat_of_a_silent_node_makes_it_ready(context: WorkerContext) -> None:
    change(context, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=5), capacity=1)
    with context.database.transaction() as session:
        assert placement.place(session, IMAGE) is None
    assert node_after_heartbeat(context).capacity == context.settings.node_capacity
    with context.database.transaction() as session:
        assert placement.place(session, IMAGE) == NODE_ID


class TestWrongEngine:
    """The worker of `node-a` runs with the engine of `node-b`."""

    @pytest.fixture
    def moved_sandbox(self, context: WorkerContext, user: ApiUser, engine: FakeEngine) -> str:
        """A sandbox that moved from `node-a` and runs on that engine."""
        make_node(context.database, "node-b", engine_id=engine.id)
        sandbox_id = running(context, user)
        change(context, Sandbox, sandbox_id, node_id="node-b")
        with context.database.transaction() as session:
            session.add(StaleContainer(sandbox_id=sandbox_id, node_id=NODE_ID))
        return sandbox_id

    def test_heartbeat_of_a_wrong_engine_removes_no_container_and_writes_no_row(
        self, context: WorkerContext, moved_sandbox: str, engine: FakeEngine
    ) -> None:
        change(context, Node, NODE_ID, status=NodeStatus.LOST)
        with pytest.raises(Conflict, match="AW_NODE=node-b"):
            send_heartbeat(context)
        assert container_name(moved_sandbox) in engine.containers
        assert row(context, Node, NODE_ID).status == NodeStatus.LOST

    @pytest.mark.usefixtures("moved_sandbox")
    def test_worker_of_a_replaced_engine_exits(self, context: WorkerContext, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[int] = []
        monkeypatch.setattr("os.kill", lambda _pid, number: sent.append(number))
        send_heartbeat_or_exit(context, NodeFailureDetector(context))
        assert sent == [signal.SIGTERM]


def test_replaced_engine_is_accepted_if_the_node_was_silent(context: WorkerContext, engine: FakeEngine) -> None:
    send_heartbeat(context)
    engine.id = "another"
    with pytest.raises(Conflict):
        send_heartbeat(context)
    change(context, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=1))
    assert (node_after_heartbeat(context).engine_id, node_after_heartbeat(context).status) == (
        "another",
        NodeStatus.READY,
    )


def test_node_that_fails_a_check_takes_no_new_sandboxes_until_it_passes(context: WorkerContext) -> None:
    missing: list[str | None] = [None]
    context.node_checks.append(lambda: missing[0])

    def placed() -> str | None:
        send_heartbeat(context)
        with context.database.transaction() as session:
            return placement.place(session, IMAGE)

    assert placed() == NODE_ID
    missing[0] = "its disk is full"
    assert placed() is None
    found = row(context, Node, NODE_ID)
    assert (found.status, found.closed_reason) == (NodeStatus.READY, "its disk is full")
    missing[0] = None
    assert placed() == NODE_ID


def test_node_reports_its_resources_and_a_full_disk(context: WorkerContext, engine: FakeEngine) -> None:
    context.node_checks.append(lambda: find_disk_shortage(engine, 2**30))
    found = node_after_heartbeat(context)
    assert (found.disk_kind, found.runtimes, found.closed_reason) == ("plain", ["runc"], None)
    engine.free = 2**29
    assert "has 512 MB free" in str(node_after_heartbeat(context).closed_reason)
    engine.free = 2**30
    assert node_after_heartbeat(context).closed_reason is None
