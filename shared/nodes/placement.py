"""Placement: choose the node for a sandbox. A node whose breaker for the spec is open is left out."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, func, literal_column, update
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from shared.clock import now
from shared.models import Node, NodeSpecBackoff, Sandbox
from shared.states import NodeStatus

# A node that has been silent this long takes no new sandboxes.
HEARTBEAT_LIMIT = timedelta(seconds=20)
# A half-open breaker without a result for this time lets another sandbox through.
MAX_HALF_OPEN = timedelta(minutes=2)


def place(
    session: Session, spec_id: str, *, besides: Collection[str] = frozenset(), for_pool: bool = False
) -> str | None:
    """Choose the READY node with the max number of free slots that takes sandboxes of the spec.

    The nodes stay locked until the caller commits: two concurrent placements would both take the last slot.

    Args:
        besides: the nodes that must not be chosen.
        for_pool: place a warm sandbox, which takes only free slots. For other sandboxes, warm ones don't count.

    Returns:
        The id of the node; None if no node has a free slot.
    """
    locked = session.exec(_ready(spec_id, besides).order_by(col(Node.id)).with_for_update(key_share=True)).all()
    node_id = _emptiest(session, locked, for_pool=for_pool)
    if node_id is not None:
        _make_half_open(session, node_id, spec_id)
    return node_id


def is_there() -> ColumnElement[bool]:
    """Build the condition for a sandbox that has or may get a container, volume or network."""
    # In the same words as the index: with a parameter the database could not use it.
    return col(Sandbox.status) != literal_column("'DELETED'")


def takes_sandboxes(oldest: Any = None) -> tuple[ColumnElement[bool], ...]:
    """Build the conditions for a node that sandboxes may be placed on, if it has room.

    Args:
        oldest: a bind parameter for `oldest_heartbeat`, in a prepared statement.
    """
    since = oldest_heartbeat() if oldest is None else oldest
    return (col(Node.status) == NodeStatus.READY, col(Node.heartbeat_at) > since)


def oldest_heartbeat() -> datetime:
    """Return the time of the oldest heartbeat with which a node takes new sandboxes."""
    return now() - HEARTBEAT_LIMIT


def has_room(session: Session, spec_id: str, *, besides: Collection[str] = frozenset(), for_pool: bool = False) -> bool:
    """Whether `place` would find a node now."""
    return _emptiest(session, session.exec(_ready(spec_id, besides)).all(), for_pool=for_pool) is not None


def is_breaker(node_id: Any, spec_id: Any) -> ColumnElement[bool]:
    """Build the condition for the row of a node's breaker for a spec (`shared.nodes.spec_backoff`)."""
    return and_(col(NodeSpecBackoff.node_id) == node_id, col(NodeSpecBackoff.spec_id) == spec_id)


def _ready(spec_id: str, besides: Collection[str]) -> SelectOfScalar[str]:
    is_open = is_breaker(col(Node.id), spec_id), col(NodeSpecBackoff.rests_until) > now()
    breaker = select(NodeSpecBackoff.node_id).where(*is_open)
    return select(Node.id).where(*takes_sandboxes(), ~breaker.exists(), col(Node.id).not_in(besides))


def _make_half_open(session: Session, node_id: str, spec_id: str) -> None:
    """Make an open breaker half-open: one sandbox tests the node, and the next ones go to other nodes meanwhile.

    A closed breaker is left alone.
    """
    is_opened = is_breaker(node_id, spec_id), col(NodeSpecBackoff.rests_until).is_not(None)
    session.execute(update(NodeSpecBackoff).where(*is_opened).values(on_trial=True, rests_until=now() + MAX_HALF_OPEN))


def _emptiest(session: Session, node_ids: Sequence[str], *, for_pool: bool = False) -> str | None:
    used = func.count(col(Sandbox.id))
    there = and_(col(Sandbox.node_id) == col(Node.id), is_there())
    statement = (
        select(Node.id)
        .outerjoin(Sandbox, there if for_pool else and_(there, col(Sandbox.owner_id).is_not(None)))
        .where(col(Node.id).in_(node_ids))
        .group_by(col(Node.id), col(Node.capacity))
        .having(col(Node.capacity) > used)
        .order_by((col(Node.capacity) - used).desc(), col(Node.id))
    )
    return session.exec(statement.limit(1)).first()
