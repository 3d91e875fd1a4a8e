"""Nodes, and which of them a sandbox goes to."""

from datetime import datetime, timedelta

from sqlalchemy import func
from sqlmodel import Session, col, select

from shared.clock import now
from shared.models import Installation, Node, Sandbox
from shared.states import NodeStatus, Status

# A node that has been silent this long takes no new sandboxes.
HEARTBEAT_LIMIT = timedelta(seconds=20)


def installation_id(session: Session) -> str:
    """This installation's id, made once."""
    row = session.exec(select(Installation)).first()
    if row is None:
        row = Installation()
        session.add(row)
        session.flush()
    return row.id


def beat(session: Session, node_id: str, *, capacity: int, problem: str | None) -> None:
    """Record that a node's worker lives, and whether its engine does."""
    node = session.get(Node, node_id, with_for_update=True)
    status = NodeStatus.LOST if problem else NodeStatus.READY
    if node is None:
        session.add(Node(id=node_id, status=status, capacity=capacity, detail=problem))
        return
    if node.status != NodeStatus.CORDONED:
        node.status = status
    node.capacity, node.detail, node.heartbeat_at = capacity, problem, now()


def place(session: Session) -> str | None:
    """The READY node with the most free slots; None while there is none with any.

    Until the caller commits, nobody else is given a place: two at once would both be given the last one.
    """
    ready = select(Node.id).where(Node.status == NodeStatus.READY, col(Node.heartbeat_at) > _oldest_heartbeat())
    locked = session.exec(ready.order_by(col(Node.id)).with_for_update(key_share=True)).all()
    used = func.count(col(Sandbox.id))
    statement = (
        select(Node.id)
        .outerjoin(Sandbox, (col(Sandbox.node_id) == col(Node.id)) & (col(Sandbox.status) != Status.DELETED))
        .where(col(Node.id).in_(locked))
        .group_by(col(Node.id), col(Node.capacity))
        .having(col(Node.capacity) > used)
        .order_by((col(Node.capacity) - used).desc(), col(Node.id))
    )
    return session.exec(statement.limit(1)).first()


def list_nodes(session: Session) -> list[Node]:
    """Every node, by name."""
    return list(session.exec(select(Node).order_by(col(Node.id))).all())


def _oldest_heartbeat() -> datetime:
    return now() - HEARTBEAT_LIMIT
