"""The node's sign of life."""

import signal
from datetime import timedelta

import pytest

from shared.clock import now
from shared.errors import Conflict
from shared.models import Node, Sandbox, SandboxLeftover
from shared.states import NodeStatus
from shared.store import nodes
from tests.factories import NODE_ID, Person, make_node
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.scenes import change, row, running
from worker.__main__ import beat_or_end
from worker.node import beat
from worker.parts import Parts
from worker.sandbox_container import container_name


def beaten(parts: Parts) -> Node:
    beat(parts)
    return row(parts, Node, NODE_ID)


def test_first_beat_makes_the_node(parts: Parts) -> None:
    with parts.database.transaction() as session:
        session.delete(session.get_one(Node, NODE_ID))
    found = beaten(parts)
    assert (found.status, found.capacity, found.detail) == (NodeStatus.READY, parts.settings.node_capacity, None)


def test_node_without_its_engine_is_lost_until_it_is_back(parts: Parts, engine: FakeEngine) -> None:
    engine.down = True
    found = beaten(parts)
    assert found.status == NodeStatus.LOST
    assert "the engine does not answer" in (found.detail or "")
    engine.down = False
    found = beaten(parts)
    assert (found.status, found.detail) == (NodeStatus.READY, None)


@pytest.mark.parametrize("down", [True, False])
def test_cordoned_node_stays_so(parts: Parts, engine: FakeEngine, down: bool) -> None:
    change(parts, Node, NODE_ID, status=NodeStatus.CORDONED)
    engine.down = down
    assert beaten(parts).status == NodeStatus.CORDONED


def test_beat_brings_a_silent_node_back_into_use(parts: Parts) -> None:
    change(parts, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=5), capacity=1)
    with parts.database.transaction() as session:
        assert nodes.place(session, IMAGE) is None
    assert beaten(parts).capacity == parts.settings.node_capacity
    with parts.database.transaction() as session:
        assert nodes.place(session, IMAGE) == NODE_ID


class TestEngineOfAnotherNode:
    """The worker of `node-a` finds itself beside the engine of `node-b`."""

    @pytest.fixture
    def moved(self, parts: Parts, user: Person, engine: FakeEngine) -> str:
        """A sandbox that moved away from `node-a`, and runs on that engine."""
        make_node(parts.database, "node-b", engine_id=engine.id)
        sandbox_id = running(parts, user)
        change(parts, Sandbox, sandbox_id, node_id="node-b")
        with parts.database.transaction() as session:
            session.add(SandboxLeftover(sandbox_id=sandbox_id, node_id=NODE_ID))
        return sandbox_id

    def test_nothing_is_removed_and_nothing_written(self, parts: Parts, moved: str, engine: FakeEngine) -> None:
        change(parts, Node, NODE_ID, status=NodeStatus.LOST)
        with pytest.raises(Conflict, match="AW_NODE=node-b"):
            beat(parts)
        assert container_name(moved) in engine.containers
        assert row(parts, Node, NODE_ID).status == NodeStatus.LOST

    @pytest.mark.usefixtures("moved")
    def test_worker_of_a_replaced_engine_ends(self, parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[int] = []
        monkeypatch.setattr("os.kill", lambda _pid, number: sent.append(number))
        beat_or_end(parts)
        assert sent == [signal.SIGTERM]


def test_replaced_engine_is_taken_when_the_node_was_silent(parts: Parts, engine: FakeEngine) -> None:
    beat(parts)
    engine.id = "another"
    with pytest.raises(Conflict):
        beat(parts)
    change(parts, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=1))
    assert (beaten(parts).engine_id, beaten(parts).status) == ("another", NodeStatus.READY)
