"""Nodes, and which of them a sandbox goes to."""

from contextlib import suppress
from datetime import datetime, timedelta

from sqlalchemy import func
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from shared.clock import now
from shared.errors import NotFound
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
    node = _locked_or_made(session, node_id, capacity)
    if node.status != NodeStatus.CORDONED:
        node.status = NodeStatus.LOST if problem else NodeStatus.READY
    node.capacity, node.detail, node.heartbeat_at = capacity, problem, now()


def cordon(session: Session, node_id: str) -> None:
    """Place nothing new on a node; what it has stays. It holds until `uncordon`, whatever its worker says.

    Raises:
        NotFound: no worker of that node was ever heard of.
    """
    _locked(session, node_id).status = NodeStatus.CORDONED


def uncordon(session: Session, node_id: str) -> None:
    """Let a cordoned node take sandboxes again, as soon as it can; do nothing to another.

    Raises:
        NotFound: no worker of that node was ever heard of.
    """
    node = _locked(session, node_id)
    if node.status == NodeStatus.CORDONED:
        node.status = NodeStatus.LOST if node.detail else NodeStatus.READY


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


def used_slots(session: Session) -> dict[str, int]:
    """How many sandboxes each node has, whatever their state; nodes without any are left out."""
    taken = select(Sandbox.node_id, func.count(col(Sandbox.id))).where(
        col(Sandbox.node_id).is_not(None), Sandbox.status != Status.DELETED
    )
    return {str(node_id): used for node_id, used in session.exec(taken.group_by(col(Sandbox.node_id))).all()}


def _locked(session: Session, node_id: str) -> Node:
    node = session.get(Node, node_id, with_for_update=True)
    if node is None:
        raise NotFound("node", node_id)
    return node


def _locked_or_made(session: Session, node_id: str, capacity: int) -> Node:
    if session.get(Node, node_id, with_for_update=True) is None:
        # Another worker of the node may make it at this moment.
        with suppress(IntegrityError), session.begin_nested():
            session.add(Node(id=node_id, status=NodeStatus.READY, capacity=capacity))
    return _locked(session, node_id)


def _oldest_heartbeat() -> datetime:
    return now() - HEARTBEAT_LIMIT
