"""Placement: choose the node for a sandbox. A node whose breaker for the spec is open is left out.

A circuit breaker per node and spec counts failures: a node that fails to run a spec gets no sandboxes of it for a
while. Sandboxes that become ready open and close the breakers. A failure counts against the node only when the sandbox
became ready on another node. So a broken spec opens no breaker, and one owner's sandboxes can't take a node from the
specs of others.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, CursorResult, and_, delete, func, literal_column, or_, update
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from shared.clock import MAX_ERROR, now
from shared.models import Node, NodeSpecBackoff, Sandbox, StaleContainer
from shared.sql.due_checks import while_exists
from shared.sql.statements import bind, bind_values, get_locked, locked, send
from shared.states import PAUSING, Desired, NodeStatus

# A node that has been silent this long takes no new sandboxes.
HEARTBEAT_LIMIT = timedelta(seconds=20)
# A half-open breaker without a result for this time lets another sandbox through.
MAX_HALF_OPEN = timedelta(minutes=2)
# The number of failures in a row that opens the breaker. The backoff doubles with each further failure.
MAX_FAILURES = 3
FIRST_BACKOFF = timedelta(seconds=30)
MAX_BACKOFF = timedelta(minutes=15)


def place(
    session: Session, spec_id: str, *, excluded: Collection[str] = frozenset(), for_pool: bool = False
) -> str | None:
    """Choose the READY node with the max number of free slots that takes sandboxes of the spec.

    The nodes stay locked until the caller commits: otherwise two concurrent placements could both take the last slot.

    Args:
        excluded: the nodes that must not be chosen.
        for_pool: place a warm sandbox, which takes only free slots. For other sandboxes, warm ones don't count.

    Returns:
        The id of the node; None if no node has a free slot.
    """
    ready = session.exec(locked(_ready(spec_id, excluded).order_by(col(Node.id)), key_share=True)).all()
    node_id = _emptiest(session, ready, for_pool=for_pool)
    if node_id is not None:
        _make_half_open(session, node_id, spec_id)
    return node_id


def may_have_container() -> ColumnElement[bool]:
    """Build the condition for a sandbox that has or may get a container, volume or network."""
    # Spelled as in the index's condition: with a parameter, the database could not use the index.
    return col(Sandbox.status) != literal_column("'DELETED'")


def takes_sandboxes(oldest: Any = None) -> tuple[ColumnElement[bool], ...]:
    """Build the conditions for a node that sandboxes may be placed on, if it has room.

    Args:
        oldest: a bind parameter for `oldest_heartbeat`, in a prepared statement.
    """
    since = oldest_heartbeat() if oldest is None else oldest
    return (col(Node.status) == NodeStatus.READY, col(Node.closed_reason).is_(None), col(Node.heartbeat_at) > since)


def oldest_heartbeat() -> datetime:
    """Return the time of the oldest heartbeat with which a node takes new sandboxes."""
    return now() - HEARTBEAT_LIMIT


def is_silent(heartbeat_at: datetime) -> bool:
    """Whether a node with this last heartbeat is silent. One from before the database's clock was set back is old."""
    return not oldest_heartbeat() < heartbeat_at <= now() + MAX_ERROR


def find_obstacle(node: Node) -> str | None:
    """Return why no sandboxes are placed on a node now, even if it has room; None: they are, as `takes_sandboxes` says.

    Backoffs don't count: they concern one spec each.
    """
    if node.status == NodeStatus.CORDONED:
        return "it is cordoned"
    silent = f"no heartbeat for {HEARTBEAT_LIMIT.seconds} s" if is_silent(node.heartbeat_at) else None
    return node.detail or node.closed_reason or silent


def is_lost(session: Session, node_id: str) -> bool:
    """Whether the node was marked lost, or its worker has reported a problem, since its last heartbeat."""
    node = session.get(Node, node_id)
    return node is not None and node.detail is not None


def has_room(
    session: Session, spec_id: str, *, excluded: Collection[str] = frozenset(), for_pool: bool = False
) -> bool:
    """Whether `place` would find a node now."""
    return _emptiest(session, session.exec(_ready(spec_id, excluded)).all(), for_pool=for_pool) is not None


def is_breaker(node_id: Any, spec_id: Any) -> ColumnElement[bool]:
    """Build the condition for the row of a node's breaker for a spec."""
    return and_(col(NodeSpecBackoff.node_id) == node_id, col(NodeSpecBackoff.spec_id) == spec_id)


def _ready(spec_id: str, excluded: Collection[str]) -> SelectOfScalar[str]:
    is_open = is_breaker(col(Node.id), spec_id), _in_backoff()
    breaker = select(NodeSpecBackoff.node_id).where(*is_open)
    return select(Node.id).where(*takes_sandboxes(), ~breaker.exists(), col(Node.id).not_in(excluded))


def _make_half_open(session: Session, node_id: str, spec_id: str) -> None:
    """Make an open breaker half-open: one sandbox tests the node, and the next ones go to other nodes until then.

    A closed breaker is left alone.
    """
    is_opened = is_breaker(node_id, spec_id), col(NodeSpecBackoff.backoff_until).is_not(None)
    session.execute(
        update(NodeSpecBackoff).where(*is_opened).values(is_half_open=True, backoff_until=now() + MAX_HALF_OPEN)
    )


def _emptiest(session: Session, node_ids: Sequence[str], *, for_pool: bool = False) -> str | None:
    used = func.count(col(Sandbox.id))
    there = and_(col(Sandbox.node_id) == col(Node.id), may_have_container())
    statement = (
        select(Node.id)
        .outerjoin(Sandbox, there if for_pool else and_(there, col(Sandbox.owner_id).is_not(None)))
        .where(col(Node.id).in_(node_ids))
        .group_by(col(Node.id), col(Node.capacity))
        .having(col(Node.capacity) > used)
        .order_by((col(Node.capacity) - used).desc(), col(Node.id))
    )
    return session.exec(statement.limit(1)).first()


# --- sandboxes without a node, placed as soon as a node has room ----------------------------------------------------


def find_waiting(session: Session, own_node_id: str, limit: int = 100) -> list[str]:
    """Return the ids of the sandboxes that `place_waiting` can place now, read without locks.

    Sandboxes to be deleted come first: they need no room. They are left to other nodes while the calling worker's node
    is lost: no worker could remove them before that node is back. Then come those of specs with room, oldest first: a
    spec without room does not delay the others.
    """
    kinds = session.execute(select(Sandbox.spec_id, Sandbox.desired).where(*_waits()).distinct()).all()
    if not kinds:
        return []
    started = {spec_id for spec_id, desired in kinds if desired != Desired.DELETED}
    with_room = [spec_id for spec_id in started if has_room(session, spec_id)]
    starts = col(Sandbox.desired) != Desired.DELETED
    can_be_placed = and_(starts, col(Sandbox.spec_id).in_(with_room))
    if not is_lost(session, own_node_id):
        can_be_placed = or_(~starts, can_be_placed)
    found = select(Sandbox.id).where(*_waits(), can_be_placed).order_by(starts, col(Sandbox.created_at))
    return list(session.exec(found.limit(limit)).all())


def place_waiting(session: Session, sandbox_id: str, own_node_id: str, *, due_at: datetime) -> str | None:
    """Place the sandbox on a node, if it still has none and no other transaction has locked it.

    A sandbox to be deleted needs no room, only a worker: it goes to `own_node_id`, even if that node is full.

    Args:
        own_node_id: the node of the calling worker.

    Returns:
        The id of the node; None if the sandbox was not placed.
    """
    waiting = select(Sandbox).where(Sandbox.id == sandbox_id, *_waits())
    sandbox = session.exec(locked(waiting, skip_locked=True)).first()
    if sandbox is None:
        return None
    node_id = own_node_id if sandbox.desired == Desired.DELETED else _place_if_room(session, sandbox.spec_id)
    if node_id is not None:
        sandbox.node_id, sandbox.due_at = node_id, due_at
    return node_id


def _place_if_room(session: Session, spec_id: str) -> str | None:
    # Check without a lock first, so that placements of other specs don't wait for this one.
    return place(session, spec_id) if has_room(session, spec_id) else None


def _waits() -> tuple[Any, ...]:
    # One that is to be paused needs no node (`shared.sandboxes.status.pause_unplaced`).
    return (col(Sandbox.node_id).is_(None), may_have_container(), col(Sandbox.desired).not_in(PAUSING))


# --- circuit breakers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BackoffChange:
    """A change of a breaker after a sandbox became ready: `failures` is 0 if the node runs the spec."""

    node_id: str
    failures: int
    backoff_until: datetime | None = None


def record_result(session: Session, sandbox: Sandbox) -> list[BackoffChange]:
    """Record a sandbox that became ready: a success of its node, and a failure of the nodes that failed to run it."""
    ids = {"sandbox_id": sandbox.id, "node_id": sandbox.node_id, "spec_id": sandbox.spec_id}
    [[has_result]] = send(session, HAS_RESULT, bind_values(generation=sandbox.generation, **ids))
    return _update_breakers(session, sandbox) if has_result else []


def reset_backoff(session: Session, node_id: str) -> None:
    _record_success(session, col(NodeSpecBackoff.node_id) == node_id)


def open_breakers(session: Session) -> list[NodeSpecBackoff]:
    return list(session.exec(select(NodeSpecBackoff).where(_in_backoff())).all())


def _update_breakers(session: Session, sandbox: Sandbox) -> list[BackoffChange]:
    is_failed = (
        StaleContainer.sandbox_id == sandbox.id,
        StaleContainer.refused_generation == sandbox.generation,
    )
    failed = session.exec(select(StaleContainer).where(*is_failed).order_by(col(StaleContainer.node_id))).all()
    changes = []
    for container in failed:
        container.refused_generation = None
        changes.append(_record_failure(session, container.node_id, sandbox.spec_id, container.refusal))
    if _record_success(session, is_breaker(str(sandbox.node_id), sandbox.spec_id)):
        changes.append(BackoffChange(str(sandbox.node_id), failures=0))
    return changes


def _record_failure(session: Session, node_id: str, spec_id: str, detail: str | None) -> BackoffChange:
    get_locked(session, Node, node_id, key_share=True)  # one at a time
    row = session.get(NodeSpecBackoff, (node_id, spec_id), populate_existing=True)
    if row is None:
        row = NodeSpecBackoff(node_id=node_id, spec_id=spec_id)
        session.add(row)
    # A failure of a sandbox placed before the breaker opened does not count.
    if row.backoff_until is None or row.is_half_open or not now() <= row.backoff_until <= _latest():
        row.failures, row.detail, row.is_half_open = row.failures + 1, detail, False
        row.backoff_until = now() + _backoff(row.failures) if row.failures >= MAX_FAILURES else None
    return BackoffChange(node_id, row.failures, row.backoff_until)


def _record_success(session: Session, where: ColumnElement[bool]) -> bool:
    result: CursorResult[object] = session.execute(delete(NodeSpecBackoff).where(where))  # type: ignore[assignment]
    return result.rowcount > 0


def _in_backoff() -> ColumnElement[bool]:
    """Build the condition for an open breaker. A later end was written before the database's clock was set back."""
    return col(NodeSpecBackoff.backoff_until).between(now(), _latest())


def _latest() -> datetime:
    return now() + MAX_BACKOFF + MAX_ERROR


def _backoff(failures: int) -> timedelta:
    doublings = min(failures - MAX_FAILURES, 10)
    return min(FIRST_BACKOFF * float(2**doublings), MAX_BACKOFF)


# --- prepared statement ---------------------------------------------------------------------------------------------

FAILED_ELSEWHERE = select(StaleContainer.node_id).where(
    StaleContainer.sandbox_id == bind("sandbox_id"), StaleContainer.refused_generation == bind("generation")
)
HAS_FAILURES = select(NodeSpecBackoff.node_id).where(is_breaker(bind("node_id"), bind("spec_id")))
# Whether a breaker must change: checked for every sandbox that becomes ready, and rarely true.
HAS_RESULT = sql_select(or_(FAILED_ELSEWHERE.exists(), HAS_FAILURES.exists()))

# --- check ------------------------------------------------------------------------------------------------------------

# Sandboxes without a node that are to be placed, or to be paused (`shared.sandboxes.queries.find_unplaced_pauses`).
_IS_PAUSED = and_(
    col(Sandbox.desired).in_([literal_column(f"'{desired}'") for desired in sorted(PAUSING)]),
    col(Sandbox.generation) == col(Sandbox.observed_generation),
)
UNPLACED = while_exists(Sandbox.created_at, col(Sandbox.node_id).is_(None), may_have_container(), ~_IS_PAUSED)
