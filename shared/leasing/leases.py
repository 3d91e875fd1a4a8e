"""Leases: one worker on a row at a time (law 4).

A worker processes a row whose `due_at` is set. A claim clears `due_at`, so a `due_at` that a new desired state or an
engine event writes during the lease is found when the lease is released. The sweep treats an expired lease as due.

A time further ahead than `FARTHEST` was written by a wrong clock, and counts as past: otherwise a row would wait until
that time. A worker whose clock is ahead may claim a row with a live lease; the fencing token makes this harmless.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, and_, case, func, or_
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from shared.clock import now
from shared.db.database import Database
from shared.errors import LeaseLost
from shared.models import Conversation, Sandbox, StartTask
from shared.models.columns import UtcDateTime
from shared.sql import locks
from shared.sql.due_checks import DueCheck
from shared.sql.statements import (
    Rows,
    all_columns,
    bind,
    bind_values,
    count_written,
    guarded_update,
    make_row,
    send,
    unchanged,
    write_unchanged,
)

Row = TypeVar("Row", Sandbox, StartTask, Conversation)

# The columns that release a lease, for a worker that writes its last observed state with them.
RELEASED: dict[str, Any] = {"lease_owner": None, "lease_until": None}
# The maximum number of one owner's due rows that a sweep enqueues: other owners' rows do not wait behind thousands.
MAX_OF_OWNER = 50
# `MAX_SECONDS`, plus some seconds for small differences between clocks.
FARTHEST = timedelta(seconds=20)
ON_NODE = col(Sandbox.node_id) == bind("node_id")
IS_OBSERVED = col(Sandbox.generation) == col(Sandbox.observed_generation)


class Backlog(NamedTuple):
    """The rows that no worker has claimed yet.

    Args:
        waiting: the number of rows with a `due_at`.
        due: the number of those whose `due_at` has passed.
        oldest_due_at: the earliest `due_at` of those.
    """

    waiting: int
    due: int
    oldest_due_at: datetime | None


def claim(session: Session, table: type[Row], row_id: str, owner: str, seconds: float) -> Row | None:
    """Lease a due row for `seconds`.

    Returns:
        The row with its new fence, detached from any session; None if it is not due or another worker has its lease.
    """
    return _first_row(table, send(session, _claiming(table), _lease_values(row_id, owner, seconds)))


def claim_and_commit(
    database: Database,
    table: type[Row],
    row_id: str,
    owner: str,
    seconds: float,
    *,
    node_id: str,
    only_observed: bool = False,
) -> Row | None:
    """Lease a due row as `claim` does, and commit: one message to PostgreSQL.

    Args:
        node_id: the worker's node. A sandbox that has moved to another node is left alone.
        only_observed: leave a sandbox alone whose current generation is not observed yet.
    """
    claimant = _lease_values(row_id, owner, seconds)
    if table is not Sandbox:
        return _first_row(table, database.execute_and_commit(_claiming(table), claimant))
    statement = _claiming(table, ON_NODE, *([IS_OBSERVED] if only_observed else ()))
    return _first_row(table, database.execute_and_commit(statement, claimant | bind_values(node_id=node_id)))


def write(
    session: Session,
    table: type[Row],
    row_id: str,
    fence: int,
    *,
    still: Mapping[str, Any] | None = None,
    returning: tuple[str, ...] = ("id",),
    **values: Any,
) -> Sequence[Any]:
    """Write columns of a leased row: one conditional UPDATE that checks the fence (law 3).

    Args:
        still: the values that these columns must still have.
        returning: the columns to return.

    Returns:
        The new values of the returned columns.

    Raises:
        LeaseLost: the fence has changed, or a column in `still` has; nothing was written.
    """
    expected = {"id": row_id, "fence": fence, **(still or {})}
    written = write_unchanged(session, table, expected, values, returning)
    if written is None:
        raise _lost(table, row_id, fence)
    return written


def lock_leased(session: Session, table: type[Row], row_id: str, fence: int) -> None:
    """Lock a leased row until the transaction ends, before rows that come later in the order of `shared.sql.locks`.

    Raises:
        LeaseLost: the fence has changed.
    """
    if not send(session, _locking(table), bind_values(row_id=row_id, fence=fence)):
        raise _lost(table, row_id, fence)


def read(database: Database, table: type[Row], row_id: str, fence: int, columns: tuple[str, ...]) -> Sequence[Any]:
    """Read columns of a leased row, outside a transaction.

    Raises:
        LeaseLost: the fence has changed.
    """
    for row in database.fetch(_reading(table, columns), bind_values(row_id=row_id, fence=fence)):
        return row
    raise _lost(table, row_id, fence)


def release(session: Session, table: type[Row], row_id: str, fence: int, retry_at: datetime | None = None) -> bool:
    """Release the lease, and requeue the row at `retry_at`. An earlier `due_at`, written during the lease, stays.

    Returns:
        Whether the row is due, now or later.

    Raises:
        LeaseLost: the fence has changed.
    """
    for (due_at,) in send(session, _releasing(table), bind_values(row_id=row_id, fence=fence, retry_at=retry_at)):
        return due_at is not None
    raise _lost(table, row_id, fence)


def mark_due(session: Session, table: type[Row], row_id: str, at: datetime, **still: Any) -> None:
    """Mark the row due at `at`, if other columns still have the values in `still`. An earlier `due_at` stays."""
    due, guard = col(table.due_at), unchanged(table, id=row_id, **still)
    count_written(session, guarded_update(table, guard, {"due_at": case((due < at, due), else_=at)}))


def find_due(
    session: Session, table: type[Row], where: ColumnElement[bool], *, limit: int = 500, **values: Any
) -> list[str]:
    """Return the ids of due rows without a live lease, oldest first, read without locks: `MAX_OF_OWNER` of each owner.

    Two queries read one partial index each: SQLite would read the whole table if they were one query.

    Args:
        where: a condition on the rows. Pass the same object each time: it is the key of the prepared statement.
        values: the bind parameters of `where`.
    """
    parameters = bind_values(**values) | bind_values(**_times())
    rows = (send(session, statement, parameters) for statement in _finding_due(table, where, limit))
    return list(dict.fromkeys(row_id for found in rows for (row_id,) in found))[:limit]


def dequeue_due(session: Session, table: type[Row], ids: Collection[str], *, again_at: datetime) -> Sequence[str]:
    """Select the rows that are still due and have no live lease, so that only this caller enqueues them.

    Their `due_at` moves to `again_at`, when the sweep enqueues them a second time unless a worker has claimed them. The
    next sweep handles rows that another transaction has locked.
    """
    due = or_(_is_waiting(table), _is_abandoned(table))
    unlocked = locks.in_order(table, and_(col(table.id).in_(ids), due), skip_locked=True)
    taken = session.execute(unlocked, bind_values(**_times())).scalars().all() if ids else ()
    if taken:
        count_written(session, guarded_update(table, col(table.id).in_(taken), {"due_at": again_at}))
    return taken


def backlog(session: Session, table: type[Row]) -> Backlog:
    """Count the due rows of a table."""
    due = col(table.due_at)
    counts = (func.count(), func.count().filter(_is_past(due)), func.min(due).filter(_is_past(due)))
    return Backlog(*session.execute(select(*counts).where(due.is_not(None)), bind_values(**_times())).one())


def is_leased(lease_until: datetime | None) -> bool:
    return lease_until is not None and now() <= lease_until <= now() + FARTHEST


def _lease_values(row_id: str, owner: str, seconds: float) -> dict[str, Any]:
    until = now() + timedelta(seconds=seconds)
    return bind_values(row_id=row_id, lease_owner=owner, lease_until=until, **_times())


def _first_row(table: type[Row], rows: Rows) -> Row | None:
    return make_row(table, rows[0]) if rows else None


def _lost(table: type[Row], row_id: str, fence: int) -> LeaseLost:
    return LeaseLost(f"{table.__tablename__} {row_id}: the lease with fence {fence} is lost")


# --- prepared statements --------------------------------------------------------------------------------------------


def _times() -> dict[str, datetime]:
    """The bind parameters of `_is_past`."""
    moment = now()
    return {"now": moment, "farthest": moment + FARTHEST}


def _is_past(column: Any) -> ColumnElement[bool]:
    return or_(column < bind("now", UtcDateTime()), column > bind("farthest", UtcDateTime()))


def _is_waiting(table: type[Row]) -> ColumnElement[bool]:
    """Due, without a lease."""
    # The condition of the index is repeated: SQLite does not use the index for a comparison alone.
    due = col(table.due_at)
    return and_(due.is_not(None), _is_past(due), col(table.lease_until).is_(None))


def _is_abandoned(table: type[Row]) -> ColumnElement[bool]:
    """Its lease has expired, and it has not been enqueued since."""
    due, until = col(table.due_at), col(table.lease_until)
    return and_(until.is_not(None), _is_past(until), or_(due.is_(None), _is_past(due)))


def _is_leased(table: type[Row]) -> ColumnElement[bool]:
    return unchanged(table, id=bind("row_id"), fence=bind("fence"))


@lru_cache(maxsize=64)
def _claiming(table: type[Row], *conditions: ColumnElement[bool]) -> Any:
    is_due = or_(col(table.due_at).is_not(None), col(table.lease_until).is_not(None))
    free = or_(col(table.lease_until).is_(None), _is_past(col(table.lease_until)))
    claimable = and_(col(table.id) == bind("row_id"), is_due, free, *conditions)
    values = {name: bind(name) for name in ("lease_owner", "lease_until")}
    claimed = {**values, "fence": col(table.fence) + 1, "due_at": None}
    return guarded_update(table, claimable, claimed, all_columns(table))


@lru_cache(maxsize=64)
def _finding_due(table: type[Row], where: ColumnElement[bool], limit: int) -> tuple[Any, ...]:
    kinds = ((_is_waiting(table), col(table.due_at)), (_is_abandoned(table), col(table.lease_until)))
    return tuple(_oldest(table, and_(where, is_due), by).limit(limit) for is_due, by in kinds)


def _oldest(table: type[Row], where: ColumnElement[bool], by: Any) -> Any:
    place = func.row_number().over(partition_by=col(table.owner_id), order_by=by).label("place")
    found = select(table.id, by.label("by"), place).where(where).subquery()
    return select(found.c.id).where(found.c.place <= MAX_OF_OWNER).order_by(found.c.by)


@lru_cache
def _reading(table: type[Row], columns: tuple[str, ...]) -> Any:
    return sql_select(*(getattr(table, name) for name in columns)).where(_is_leased(table))


@lru_cache
def _locking(table: type[Row]) -> Any:
    return locks.in_order(table, _is_leased(table))


@lru_cache
def _releasing(table: type[Row]) -> Any:
    due, retry_at = col(table.due_at), bind("retry_at", UtcDateTime())
    # Without a retry, no comparison with it is true.
    next_due = case((or_(due.is_(None), due > retry_at), retry_at), else_=due)
    return guarded_update(table, _is_leased(table), {**RELEASED, "due_at": next_due}, (due,))


# Whether `find_due` may find rows of any table, on any node.
DUE = [
    DueCheck(sql_select(end(time)).where(time.is_not(None)), lambda at: not now() <= at <= now() + FARTHEST)
    for table in (Sandbox, StartTask, Conversation)
    for time in (col(table.due_at), col(table.lease_until))
    for end in (func.min, func.max)
]
