"""A node is not lost if its heartbeat commits while another worker is about to mark it lost."""

from datetime import timedelta

from sqlmodel import Session

from shared.clock import now
from shared.db.database import Database
from shared.models import Node
from shared.nodes import registry as node_registry
from shared.states import NodeStatus
from tests.factories import make_node
from tests.interleaving import overlap

LAST = now() - timedelta(minutes=1)


def beat(session: Session) -> None:
    node_registry.record_heartbeat(session, "a", capacity=1, problem=None)


def mark_lost(session: Session) -> str | None:
    before = session.get_one(Node, "a")  # the session caches the row, as in a failover
    problem = node_registry.mark_lost(session, "a", LAST)
    assert before.detail is problem
    return problem


def test_heartbeat_between_the_read_and_the_lock_counts(database: Database) -> None:
    make_node(database, "a", heartbeat_at=LAST)
    _, problem = overlap(database, beat, mark_lost)
    assert problem is None
    with database.reading() as session:
        found = session.get_one(Node, "a")
    assert (found.status, found.detail) == (NodeStatus.READY, None)
