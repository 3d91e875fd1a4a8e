"""The node's sign of life."""

from datetime import timedelta

import pytest

from shared.clock import now
from shared.models import Node
from shared.states import NodeStatus
from shared.store import nodes
from tests.factories import NODE_ID
from tests.fakes.engine import FakeEngine
from tests.worker.scenes import change, row
from worker.node import beat
from worker.parts import Parts


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
        assert nodes.place(session) is None
    assert beaten(parts).capacity == parts.settings.node_capacity
    with parts.database.transaction() as session:
        assert nodes.place(session) == NODE_ID
