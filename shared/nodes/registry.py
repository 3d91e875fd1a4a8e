"""The registry of nodes: heartbeats, engines, cordon, lost nodes."""

from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from typing import Any

from sqlalchemy import and_, delete, func, or_
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from shared.clock import now
from shared.errors import Conflict, NotFound
from shared.models import Installation, Node, Sandbox, StaleContainer
from shared.nodes import placement
from shared.nodes.placement import HEARTBEAT_LIMIT, is_silent, may_have_container
from shared.sql import locks
from shared.sql.statements import Fetch, get_locked
from shared.states import NodeStatus, Status

# The detail of a node whose worker has not started since a restore of the database: it has not failed.
UNREPORTED = "no heartbeat since the restore of the database"


def installation_id(session: Session) -> str:
    """Return this installation's id, which is generated on the first call."""
    row = session.exec(select(Installation)).first()
    if row is None:
        locks.lock_installation(session)  # another process may start for the first time, too
        row = session.exec(select(Installation)).first()
    if row is None:
        row = Installation()
        session.add(row)
        session.flush()
    return row.id


def record_heartbeat(
    session: Session,
    node_id: str,
    *,
    capacity: int,
    problem: str | None,
    closed_reason: str | None = None,
    impaired_reason: str | None = None,
    disk_kind: str | None = None,
    runtimes: Collection[str] | None = None,
    engine_id: str | None = None,
    reaped: Collection[str] = frozenset(),
) -> str | None:
    """Record a worker's heartbeat, and the state of its engine. With a problem, the heartbeat's time is not updated.

    Args:
        capacity: the number of slots.
        problem: what is wrong with the engine; None if it is healthy.
        closed_reason: why the node takes no new sandboxes; None if it takes them.
        impaired_reason: what does not work on the node, although it takes new sandboxes.
        disk_kind: what new sandboxes have their files on; None if the engine does not respond.
        runtimes: the runtimes of the engine; None if the engine does not respond.
        engine_id: the id of the engine; None if the engine does not respond.
        reaped: the sandboxes that had moved away when the worker last removed their containers. A lost node stays LOST
            until all that have moved away are among them: otherwise a sandbox would run twice.

    Returns:
        The id of the node's previous engine, if it was replaced.

    Raises:
        Conflict: the engine belongs to another node, or the node has another engine with a live worker. Nothing is
            written.
    """
    node = _locked_or_added(session, node_id, capacity)
    replaced = _set_engine(session, node, engine_id) if engine_id else None
    if problem is None and node.detail is not None and not stale_containers(session, node_id).issubset(reaped):
        problem = "its engine still has containers of sandboxes that moved away"
    if node.status != NodeStatus.CORDONED:
        node.status = NodeStatus.LOST if problem else NodeStatus.READY
    node.capacity, node.detail, node.closed_reason = capacity, problem, closed_reason
    node.impaired_reason = impaired_reason
    node.disk_kind = disk_kind or node.disk_kind
    node.runtimes = node.runtimes if runtimes is None else sorted(runtimes)
    if problem is None:
        node.heartbeat_at, node.forgotten_at = now(), None
        _delete_tombstones(session, node_id)
    return replaced


def report_problem(session: Session, node_id: str, problem: str) -> None:
    """Record why a worker can't work. Nothing is written while another worker sends heartbeats for the node."""
    node = get_locked(session, Node, node_id)
    if node is None or not is_silent(node.heartbeat_at):
        return
    if node.status == NodeStatus.READY:
        node.status = NodeStatus.LOST
    node.detail = problem


def require_engine(session: Session, node_id: str, engine_id: str) -> None:
    """Check that a node has one engine, and an engine one node. A node without heartbeats may get a new engine.

    Raises:
        Conflict: the engine belongs to another node, or the node has another engine.
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
    if not is_silent(node.heartbeat_at):
        raise Conflict(
            f"the node {node_id} has another engine, whose worker sent a heartbeat just now: this worker needs an "
            f"AW_NODE of its own. If the node's engine was wiped or replaced, retry in {HEARTBEAT_LIMIT.seconds} s"
        )


def stale_containers(session: Session, node_id: str) -> set[str]:
    """Return the ids of the sandboxes that moved away from the node while it was lost, and did not move back."""
    return set(session.exec(_moved_from(node_id)).all())


def is_stale(session: Session, node_id: str, sandbox_id: str) -> bool:
    """Whether `stale_containers` has the sandbox now."""
    return session.exec(_moved_from(node_id).where(StaleContainer.sandbox_id == sandbox_id)).first() is not None


def has_heartbeat(session: Session, node_id: str) -> bool:
    """Whether a worker of the node has sent a heartbeat within `HEARTBEAT_LIMIT`."""
    node = session.get(Node, node_id)
    return node is not None and not is_silent(node.heartbeat_at)


def heartbeats(fetch: Fetch) -> dict[str, datetime]:
    """Return the last heartbeat of each node whose sandboxes other workers fail over when it is silent.

    Left out are nodes without a heartbeat since a restore, unless they are abandoned, and nodes without sandboxes that
    are abandoned, or lost already: a cluster may have had any number of machines.
    """
    found: Any = fetch(HEARTBEATS, {})
    return dict(found)


def mark_unreported(session: Session) -> None:
    """Mark all nodes LOST after a restore. No worker fails over their sandboxes before their next heartbeat.

    Otherwise the worker that starts first would mark the sandboxes of the others, which a resume would then recreate
    elsewhere without their restored files. A cordon stays, and so do forgotten nodes.
    """
    for node in list_nodes(session):
        if node.forgotten_at is None:
            node.detail = UNREPORTED
            node.status = node.status if node.status == NodeStatus.CORDONED else NodeStatus.LOST


def mark_lost(session: Session, node_id: str, heartbeat_at: datetime) -> str | None:
    """Mark a node LOST, unless it has sent another heartbeat since `heartbeat_at`. A cordon stays.

    The node stays LOST until the caller commits.

    Returns:
        The problem of the node; None if the node is back.
    """
    node = get_locked(session, Node, node_id, key_share=True)
    if node is None or node.heartbeat_at != heartbeat_at:
        return None
    if node.status == NodeStatus.READY:
        node.status = NodeStatus.LOST
    node.detail = node.detail or f"its worker was last heard of at {heartbeat_at.isoformat(timespec='seconds')}"
    return node.detail


def cordon(session: Session, node_id: str) -> None:
    """Place no new sandboxes on a node until `uncordon`, even if its worker reports it healthy. Its sandboxes stay.

    Raises:
        NotFound: no worker of that node has ever registered.
    """
    _locked(session, node_id).status = NodeStatus.CORDONED


def uncordon(session: Session, node_id: str) -> None:
    """Let a cordoned node take sandboxes as soon as it can, and reset its backoff.

    Raises:
        NotFound: no worker of that node has ever registered.
    """
    node = _locked(session, node_id)
    placement.reset_backoff(session, node_id)
    if node.status == NodeStatus.CORDONED:
        node.status = NodeStatus.LOST if node.detail else NodeStatus.READY


def forget(session: Session, node_id: str) -> None:
    """Abandon a lost node: other workers mark its sandboxes lost or tombstone them, until its next heartbeat.

    Raises:
        NotFound: no worker of that node has ever registered.
        Conflict: the node may not be lost.
    """
    require_lost(session, node_id).forgotten_at = now()
    placement.reset_backoff(session, node_id)


def require_lost(session: Session, node_id: str) -> Node:
    """Lock a lost node, and return it.

    Raises:
        NotFound: no worker of that node has ever registered.
        Conflict: the node may not be lost.
    """
    node = _locked(session, node_id)
    if node.detail is None or not is_silent(node.heartbeat_at):
        raise Conflict(
            f"the node {node_id} is not lost: its heartbeat was at {node.heartbeat_at.isoformat(timespec='seconds')}. "
            "Stop its worker, and wait until `nodes list` says when it was last heard of"
        )
    return node


def get(session: Session, node_id: str) -> Node:
    """Return the node of that name.

    Raises:
        NotFound: no worker of that node has ever registered.
    """
    node = session.get(Node, node_id)
    if node is None:
        raise NotFound("node", node_id)
    return node


def list_nodes(session: Session) -> list[Node]:
    """Return every node, ordered by name."""
    return list(session.exec(select(Node).order_by(col(Node.id))).all())


def used_slots(session: Session) -> dict[str, int]:
    """Count the sandboxes that take the capacity of each node: all but warm ones, in any state but DELETED.

    Nodes without any sandbox are left out, and those with warm ones only have 0.
    """
    placed = col(Sandbox.node_id).is_not(None), may_have_container()
    taken = select(Sandbox.node_id, func.count(col(Sandbox.owner_id))).where(*placed).group_by(col(Sandbox.node_id))
    return {str(node_id): used for node_id, used in session.exec(taken).all()}


def _set_engine(session: Session, node: Node, engine_id: str) -> str | None:
    require_engine(session, node.id, engine_id)
    before, node.engine_id = node.engine_id, engine_id
    return before if before != engine_id else None


def _moved_from(node_id: str) -> SelectOfScalar[str]:
    elsewhere = col(Sandbox.node_id).is_distinct_from(node_id)
    moved = select(StaleContainer.sandbox_id).join(Sandbox, col(Sandbox.id) == col(StaleContainer.sandbox_id))
    return moved.where(StaleContainer.node_id == node_id, elsewhere)


def _delete_tombstones(session: Session, node_id: str) -> None:
    """Delete the records of deleted sandboxes: any later container of one is removed by its name."""
    deleted = _moved_from(node_id).where(Sandbox.status == Status.DELETED)
    if ids := session.exec(deleted).all():
        on_node = and_(col(StaleContainer.node_id) == node_id, col(StaleContainer.sandbox_id).in_(ids))
        session.execute(delete(StaleContainer).where(on_node))


def _locked(session: Session, node_id: str) -> Node:
    node = get_locked(session, Node, node_id, key_share=True)
    if node is None:
        raise NotFound("node", node_id)
    return node


def _locked_or_added(session: Session, node_id: str, capacity: int) -> Node:
    if (node := get_locked(session, Node, node_id, key_share=True)) is not None:
        return node
    # Another worker of the node may insert it concurrently.
    with suppress(IntegrityError), session.begin_nested():
        session.add(Node(id=node_id, status=NodeStatus.READY, capacity=capacity))
    return _locked(session, node_id)


# --- prepared statement ---------------------------------------------------------------------------------------------

IS_ABANDONED = col(Node.forgotten_at).is_not(None)
IS_LOST = and_(col(Node.detail).is_not(None), col(Node.status) != NodeStatus.READY)
IS_REPORTED = or_(IS_ABANDONED, col(Node.detail).is_distinct_from(UNREPORTED))
HAS_SANDBOXES = select(Sandbox.id).where(Sandbox.node_id == Node.id, may_have_container()).exists()
HEARTBEATS = select(Node.id, Node.heartbeat_at).where(IS_REPORTED, or_(~or_(IS_ABANDONED, IS_LOST), HAS_SANDBOXES))
