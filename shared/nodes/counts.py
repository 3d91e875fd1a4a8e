"""Counts of sandboxes for metrics, from indexes alone."""

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import text
from sqlmodel import Session, col, func, select

from shared.models import Node, Sandbox
from shared.models.sandboxes import IS_COUNTED, IS_UNRECONCILED


class Counted(NamedTuple):
    """The number of sandboxes on a node with a status and its reason. Empty texts: no node yet, or no reason."""

    node_id: str
    status: str
    reason: str
    number: int


class Unreconciled(NamedTuple):
    """The sandboxes whose desired state is not reached yet, and when the first of them last changed."""

    number: int
    oldest_at: datetime | None


class CountedNode(NamedTuple):
    """A node, the number of sandboxes that it may have, and its last heartbeat."""

    node_id: str
    status: str
    capacity: int
    heartbeat_at: datetime
    # The node takes no new sandboxes, although its worker and its engine respond.
    is_closed: bool
    # The node takes new sandboxes, but something on it does not work.
    is_impaired: bool


def count_by_status(session: Session) -> list[Counted]:
    """Count the sandboxes that exist. The cost grows with their number: 100,000 take some hundredths of a second."""
    groups = (col(Sandbox.node_id), col(Sandbox.status), col(Sandbox.reason))
    statement = select(*groups, func.count()).where(text(IS_COUNTED)).group_by(*groups)
    return [
        Counted(node or "", status, reason or "", number) for node, status, reason, number in session.exec(statement)
    ]


def count_unreconciled(session: Session) -> Unreconciled:
    """Count the sandboxes with work to do, due or not, including rows that no sweep would find."""
    statement = select(func.count(), func.min(Sandbox.updated_at)).where(text(IS_UNRECONCILED))
    return Unreconciled(*session.exec(statement).one())


def read_nodes(session: Session) -> list[CountedNode]:
    """Return all nodes that are not abandoned."""
    nodes = session.exec(select(Node).where(col(Node.forgotten_at).is_(None)))
    return [
        CountedNode(
            node.id,
            node.status,
            node.capacity,
            node.heartbeat_at,
            bool(node.closed_reason),
            bool(node.impaired_reason),
        )
        for node in nodes
    ]
