"""Nodes, and which of them a sandbox goes to."""

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from typing import Any

from sqlalchemy import and_, delete, func, or_
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from shared.clock import now
from shared.errors import Conflict, NotFound
from shared.models import Installation, Node, Sandbox, StaleContainer
from shared.nodes import spec_backoff
from shared.nodes.placement import HEARTBEAT_LIMIT, is_there, oldest_heartbeat
from shared.states import NodeStatus, Status

# A sandbox may still be made that refers to the row.
UNSHARED: dict[str, Any] = {"key_share": True}


def installation_id(session: Session) -> str:
    """This installation's id, made once."""
    row = session.exec(select(Installation)).first()
    if row is None:
        row = Installation()
        session.add(row)
        session.flush()
    return row.id


def beat(
    session: Session,
    node_id: str,
    *,
    capacity: int,
    problem: str | None,
    engine_id: str | None = None,
    reaped: Collection[str] = frozenset(),
) -> str | None:
    """Record that a node's worker lives, and whether its engine does. A node with a problem has no heartbeat.

    Args:
        problem: what is wrong with the engine.
        engine_id: what tells the engine from all others; None if it does not answer.
        reaped: the sandboxes that moved away and that the engine has nothing of any more. While one is missing here,
            the node is not back: it would run twice.

    Returns:
        The id of the engine that was the node's before, if it has another one now.

    Raises:
        Conflict: the engine is another node's, or the node has another engine, whose worker lives. Nothing is written.
    """
    node = _locked_or_made(session, node_id, capacity)
    replaced = _hold_engine(session, node, engine_id) if engine_id else None
    if problem is None and not leftovers(session, node_id).issubset(reaped):
        problem = "its engine still has containers of sandboxes that moved away"
    if node.status != NodeStatus.CORDONED:
        node.status = NodeStatus.LOST if problem else NodeStatus.READY
    node.capacity, node.detail = capacity, problem
    if problem is None:
        node.heartbeat_at, node.forgotten_at = now(), None
        _forget_tombstones(session, node_id, reaped)
    return replaced


def report_problem(session: Session, node_id: str, problem: str) -> None:
    """Say what keeps a worker from work. While another worker beats for the node, nothing is written."""
    node = session.get(Node, node_id, with_for_update=True)
    if node is None or node.heartbeat_at > oldest_heartbeat():
        return
    if node.status == NodeStatus.READY:
        node.status = NodeStatus.LOST
    node.detail = problem


def require_engine(session: Session, node_id: str, engine_id: str) -> None:
    """Hold a node's name to one engine, and an engine to one name. A name that was silent may get a new engine.

    Raises:
        Conflict: they don't belong together.
    """
    other = session.exec(select(Node.id).where(Node.engine_id == engine_id, Node.id != node_id)).first()
    if other is not None:
        raise Conflict(
            f"the engine that AW_DOCKER_HOST names is the node {other}'s: a worker beside it needs AW_NODE={other}, "
            f"and {node_id} another engine. If its machine is a copy of {other}'s, remove the engine's id (engine-id "
            "in its data root, or /etc/docker/key.json), and restart the engine"
        )
    node = session.get(Node, node_id)
    if node is None or node.engine_id in (None, engine_id):
        return
    if node.heartbeat_at > oldest_heartbeat():
        raise Conflict(
            f"the node {node_id} has another engine, which was heard of a moment ago: this worker needs an AW_NODE of "
            f"its own. If the node's engine was wiped or replaced, try again in {HEARTBEAT_LIMIT.seconds} s"
        )


def leftovers(session: Session, node_id: str) -> set[str]:
    """The sandboxes that moved away from the node while it was lost, and did not come back."""
    elsewhere = col(Sandbox.node_id).is_distinct_from(node_id)
    moved = select(StaleContainer.sandbox_id).join(Sandbox, col(Sandbox.id) == col(StaleContainer.sandbox_id))
    return set(session.exec(moved.where(StaleContainer.node_id == node_id, elsewhere)).all())


def heartbeats(session: Session) -> dict[str, datetime]:
    """When each node was last in order; without those that were forgotten and have nothing any more."""
    alive = select(Sandbox.id).where(Sandbox.node_id == Node.id, is_there())
    counts = or_(col(Node.forgotten_at).is_(None), alive.exists())
    return dict(session.exec(select(Node.id, Node.heartbeat_at).where(counts)).all())


def lose(session: Session, node_id: str, heartbeat_at: datetime) -> str | None:
    """Call a node LOST, unless it has had another heartbeat than that. A cordon stays.

    Until the caller commits, the node can't come back.

    Returns:
        What is wrong with it; None if it is back.
    """
    node = session.get(Node, node_id, with_for_update=UNSHARED)
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
    """Let a node take sandboxes again, as soon as it can, whatever its engine has refused before.

    Raises:
        NotFound: no worker of that node was ever heard of.
    """
    node = _locked(session, node_id)
    spec_backoff.reset_backoff(session, node_id)
    if node.status == NodeStatus.CORDONED:
        node.status = NodeStatus.LOST if node.detail else NodeStatus.READY


def forget(session: Session, node_id: str) -> None:
    """Give a lost node up: workers of the others tell and bury its sandboxes then, until it beats again.

    Raises:
        NotFound: no worker of that node was ever heard of.
        Conflict: it may not be lost.
    """
    require_lost(session, node_id).forgotten_at = now()
    spec_backoff.reset_backoff(session, node_id)


def require_lost(session: Session, node_id: str) -> Node:
    """The node, locked, if it can be forgotten.

    Raises:
        NotFound: no worker of that node was ever heard of.
        Conflict: it may not be lost.
    """
    node = _locked(session, node_id)
    if node.detail is None or node.heartbeat_at > oldest_heartbeat():
        raise Conflict(
            f"the node {node_id} is not lost: it was heard of at {node.heartbeat_at.isoformat(timespec='seconds')}. "
            "Stop its worker, and wait until it is LOST"
        )
    return node


def get(session: Session, node_id: str) -> Node:
    """The node of that name.

    Raises:
        NotFound: no worker of that node was ever heard of.
    """
    node = session.get(Node, node_id)
    if node is None:
        raise NotFound("node", node_id)
    return node


def list_nodes(session: Session) -> list[Node]:
    """Every node, by name."""
    return list(session.exec(select(Node).order_by(col(Node.id))).all())


def used_slots(session: Session) -> dict[str, int]:
    """How many sandboxes each node has, whatever their state; nodes without any are left out."""
    taken = select(Sandbox.node_id, func.count(col(Sandbox.id))).where(col(Sandbox.node_id).is_not(None), is_there())
    return {str(node_id): used for node_id, used in session.exec(taken.group_by(col(Sandbox.node_id))).all()}


def _hold_engine(session: Session, node: Node, engine_id: str) -> str | None:
    require_engine(session, node.id, engine_id)
    before, node.engine_id = node.engine_id, engine_id
    return before if before != engine_id else None


def _forget_tombstones(session: Session, node_id: str, reaped: Collection[str]) -> None:
    """What comes late of a deleted sandbox is nobody's any more, and goes as such."""
    gone = select(Sandbox.id).where(col(Sandbox.id).in_(reaped), Sandbox.status == Status.DELETED)
    ids = session.exec(gone).all() if reaped else ()
    if ids:
        here = and_(col(StaleContainer.node_id) == node_id, col(StaleContainer.sandbox_id).in_(ids))
        session.execute(delete(StaleContainer).where(here))


def _locked(session: Session, node_id: str) -> Node:
    node = session.get(Node, node_id, with_for_update=UNSHARED)
    if node is None:
        raise NotFound("node", node_id)
    return node


def _locked_or_made(session: Session, node_id: str, capacity: int) -> Node:
    if session.get(Node, node_id, with_for_update=UNSHARED) is None:
        # Another worker of the node may make it at this moment.
        with suppress(IntegrityError), session.begin_nested():
            session.add(Node(id=node_id, status=NodeStatus.READY, capacity=capacity))
    return _locked(session, node_id)
