"""Nodes, and which of them a sandbox goes to."""

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime, timedelta

from sqlalchemy import func
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from shared.clock import now
from shared.errors import NotFound
from shared.models import Installation, Node, Sandbox, SandboxLeftover
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


def beat(
    session: Session, node_id: str, *, capacity: int, problem: str | None, reaped: Collection[str] = frozenset()
) -> None:
    """Record that a node's worker lives, and whether its engine does. A node with a problem has no heartbeat.

    Args:
        problem: what is wrong with the engine.
        reaped: the sandboxes that moved away and that the engine has nothing of any more. While one is missing here,
            the node is not back: it would run twice.
    """
    node = _locked_or_made(session, node_id, capacity)
    if problem is None and not leftovers(session, node_id).issubset(reaped):
        problem = "its engine still has containers of sandboxes that moved away"
    if node.status != NodeStatus.CORDONED:
        node.status = NodeStatus.LOST if problem else NodeStatus.READY
    node.capacity, node.detail = capacity, problem
    if problem is None:
        node.heartbeat_at = now()


def leftovers(session: Session, node_id: str) -> set[str]:
    """The sandboxes that moved away from the node while it was lost, and did not come back."""
    elsewhere = col(Sandbox.node_id).is_distinct_from(node_id)
    moved = select(SandboxLeftover.sandbox_id).join(Sandbox, col(Sandbox.id) == col(SandboxLeftover.sandbox_id))
    return set(session.exec(moved.where(SandboxLeftover.node_id == node_id, elsewhere)).all())


def heartbeats(session: Session) -> dict[str, datetime]:
    """When each node was last in order."""
    return {node.id: node.heartbeat_at for node in list_nodes(session)}


def lose(session: Session, node_id: str, heartbeat_at: datetime) -> str | None:
    """Call a node LOST, unless it has had another heartbeat than that. A cordon stays.

    Until the caller commits, the node can't come back.

    Returns:
        What is wrong with it; None if it is back.
    """
    node = session.get(Node, node_id, with_for_update=True)
    if node is None or node.heartbeat_at != heartbeat_at:
        return None
    if node.status == NodeStatus.READY:
        node.status = NodeStatus.LOST
    node.detail = node.detail or f"its worker was last heard of at {heartbeat_at.isoformat(timespec='seconds')}"
    return node.detail


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
