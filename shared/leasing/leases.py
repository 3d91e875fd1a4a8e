"""Leases: one worker on a row at a time (law 4).

A worker runs a row whose `due_at` is set. A claim clears `due_at`, so one that is written meanwhile, by a new desired
state or an engine event, is found when the lease is released. The sweep treats an expired lease as due.

A time further ahead than `FARTHEST` was written by a wrong clock, and counts as past: else a row would wait for as long
as that clock was off. A clock that is ahead may take a live lease, which the fencing token makes harmless.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import ColumnElement, CursorResult, and_, case, func, or_, true, update
from sqlmodel import Session, col, select

from shared.clock import now
from shared.db.database import Database
from shared.errors import LeaseLost
from shared.models import Conversation, Sandbox, StartTask
from shared.models.columns import UtcDateTime
from shared.sql import locks
from shared.sql.prepared import Rows, all_columns, bind, bind_values, make_row, send

Row = TypeVar("Row", Sandbox, StartTask, Conversation)

# The max length of a lease, and the max delay of `due_at`.
MAX_SECONDS = 15.0
# The columns that release a lease, for a worker that writes its last observed state with them.
RELEASED: dict[str, Any] = {"lease_owner": None, "lease_until": None}
# `MAX_SECONDS`, and some seconds for clocks that differ a little.
FARTHEST = timedelta(seconds=20)


class Freed(NamedTuple):
    """The number of a dead owner's rows that were freed, and whether none is left: locked rows are skipped."""

    number: int
    is_complete: bool


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


def claim(
    session: Session,
    table: type[Row],
    row_id: str,
    owner: str,
    seconds: float,
    *,
    where: ColumnElement[bool] | None = None,
) -> Row | None:
    """Lease a due row.

    Args:
        seconds: the length of the lease.
        where: a condition on the row. Pass the same object each time: it is the key of the prepared statement.

    Returns:
        The row with its new fence, detached from any session; None if it is not due or another worker has its lease.
    """
    return _first_row(table, send(session, _claiming(table, where), _claimant(row_id, owner, seconds)))


def claim_and_commit(
    database: Database,
    table: type[Row],
    row_id: str,
    owner: str,
    seconds: float,
    *,
    where: ColumnElement[bool] | None = None,
) -> Row | None:
    """Lease a due row as `claim` does, and commit: one message to PostgreSQL."""
    return _first_row(table, database.execute_and_commit(_claiming(table, where), _claimant(row_id, owner, seconds)))


def write(
    session: Session,
    table: type[Row],
    row_id: str,
    fence: int,
    *,
    still: Mapping[str, Any] | None = None,
    returning: tuple[str, ...] = (),
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
    expected = {f"still_{name}": value for name, value in (still or {}).items()}
    statement = _writing(table, tuple(values), tuple(still or ()), returning)
    for row in send(session, statement, bind_values(row_id=row_id, fence=fence, **values, **expected)):
        return row
    raise _lost(table, row_id, fence)


def lock_leased(session: Session, table: type[Row], row_id: str, fence: int) -> None:
    """Lock a leased row until the transaction ends, before rows that come later in the order of `shared.sql.locks`.

    Raises:
        LeaseLost: the fence has changed.
    """
    if not send(session, _locking(table), bind_values(row_id=row_id, fence=fence)):
        raise _lost(table, row_id, fence)


def release(session: Session, table: type[Row], row_id: str, fence: int, retry_at: datetime | None = None) -> bool:
    """Release the lease, and requeue the row at `retry_at` unless it is due already.

    Returns:
        Whether the row is due, now or later.

    Raises:
        LeaseLost: the fence has changed.
    """
    for (due_at,) in send(session, _releasing(table), bind_values(row_id=row_id, fence=fence, retry_at=retry_at)):
        return due_at is not None
    raise _lost(table, row_id, fence)


def expire_leases_of(
    session: Session, table: type[Row], owner: str, at: datetime, *, where: ColumnElement[bool] | None = None
) -> Freed:
    """Expire the leases of a dead owner, and mark its rows due.

    A row that another transaction has locked is left to the next call.

    Args:
        where: a condition on the rows.
    """
    values = {"lease_owner": None, "lease_until": None, "fence": col(table.fence) + 1, "due_at": at}
    held = and_(
        col(table.lease_until).is_not(None), col(table.lease_owner) == owner, true() if where is None else where
    )
    ids = session.execute(locks.in_order(table, held, skip_locked=True)).scalars().all()
    number = _update(session, table, col(table.id).in_(ids), values) if ids else 0
    left = session.execute(select(table.id).where(held).limit(1)).first()
    return Freed(number, is_complete=left is None)


def mark_due(
    session: Session, table: type[Row], row_id: str, at: datetime, *, where: ColumnElement[bool] | None = None
) -> None:
    """Mark the row due at `at`. An earlier `due_at` stays.

    Args:
        where: a condition on the row.
    """
    due, condition = col(table.due_at), and_(col(table.id) == row_id, true() if where is None else where)
    _update(session, table, condition, {"due_at": case((due < at, due), else_=at)})


def find_due(
    session: Session, table: type[Row], where: ColumnElement[bool], *, limit: int = 500, **values: Any
) -> list[str]:
    """Return the ids of due rows without a live lease, oldest first, read without locks.

    Two queries each read a partial index: SQLite would read the whole table for both in one query.

    Args:
        where: a condition on the rows. Pass the same object each time, as for `claim`.
        values: the bind parameters of `where`.
    """
    parameters = bind_values(**values) | bind_values(**_times())
    rows = (send(session, statement, parameters) for statement in _finding_due(table, where, limit))
    return list(dict.fromkeys(row_id for found in rows for (row_id,) in found))[:limit]


def dequeue_due(session: Session, table: type[Row], ids: Collection[str], *, again_at: datetime) -> Sequence[str]:
    """Take those of the rows that are still due and without a live lease, so that only this caller enqueues them.

    Their `due_at` moves to `again_at`, when the sweep enqueues them a second time unless a worker has claimed them. A
    row that another transaction has locked is left to the next sweep.
    """
    due = or_(_is_waiting(table), _is_abandoned(table))
    unlocked = locks.in_order(table, and_(col(table.id).in_(ids), due), skip_locked=True)
    taken = session.execute(unlocked, bind_values(**_times())).scalars().all() if ids else ()
    if taken:
        _update(session, table, col(table.id).in_(taken), {"due_at": again_at})
    return taken


def backlog(session: Session, table: type[Row]) -> Backlog:
    """Count the due rows of a table."""
    due = col(table.due_at)
    counts = (func.count(), func.count().filter(_is_past(due)), func.min(due).filter(_is_past(due)))
    return Backlog(*session.execute(select(*counts).where(due.is_not(None)), bind_values(**_times())).one())


def is_held(lease_until: datetime | None) -> bool:
    """Whether a lease is live now."""
    return lease_until is not None and now() <= lease_until <= now() + FARTHEST


def _update(session: Session, table: type[Row], where: ColumnElement[bool], values: dict[str, Any]) -> int:
    statement = update(table).where(where).values(**values).execution_options(synchronize_session=False)
    result: CursorResult[Any] = session.execute(statement)  # type: ignore[assignment]
    return result.rowcount


def _claimant(row_id: str, owner: str, seconds: float) -> dict[str, Any]:
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
    # In the same words as the index: SQLite does not use it for a comparison alone.
    due = col(table.due_at)
    return and_(due.is_not(None), _is_past(due), col(table.lease_until).is_(None))


def _is_abandoned(table: type[Row]) -> ColumnElement[bool]:
    """Its lease has expired, and it was not enqueued since."""
    due, until = col(table.due_at), col(table.lease_until)
    return and_(until.is_not(None), _is_past(until), or_(due.is_(None), _is_past(due)))


def _is_leased(table: type[Row]) -> ColumnElement[bool]:
    return and_(col(table.id) == bind("row_id"), col(table.fence) == bind("fence"))


@lru_cache(maxsize=64)
def _claiming(table: type[Row], where: ColumnElement[bool] | None) -> Any:
    is_due = or_(col(table.due_at).is_not(None), col(table.lease_until).is_not(None))
    free = or_(col(table.lease_until).is_(None), _is_past(col(table.lease_until)))
    values = {name: bind(name) for name in ("lease_owner", "lease_until")}
    claimable = and_(col(table.id) == bind("row_id"), is_due, free, true() if where is None else where)
    taken = update(table).where(claimable).values(**values, fence=col(table.fence) + 1, due_at=None)
    return taken.returning(*all_columns(table))


@lru_cache(maxsize=64)
def _finding_due(table: type[Row], where: ColumnElement[bool], limit: int) -> tuple[Any, Any]:
    waiting = select(table.id).where(where, _is_waiting(table)).order_by(col(table.due_at))
    abandoned = select(table.id).where(where, _is_abandoned(table)).order_by(col(table.lease_until))
    return waiting.limit(limit), abandoned.limit(limit)


@lru_cache
def _locking(table: type[Row]) -> Any:
    return locks.in_order(table, _is_leased(table))


@lru_cache(maxsize=256)
def _writing(table: type[Row], names: tuple[str, ...], still: tuple[str, ...], returning: tuple[str, ...]) -> Any:
    unchanged = (getattr(table, name).is_not_distinct_from(bind(f"still_{name}")) for name in still)
    written = update(table).where(_is_leased(table), *unchanged).values({name: bind(name) for name in names})
    return written.returning(*(getattr(table, name) for name in returning or ("id",)))


@lru_cache
def _releasing(table: type[Row]) -> Any:
    due = col(table.due_at)
    next_due = case((due.is_(None), bind("retry_at", UtcDateTime())), else_=due)
    return update(table).where(_is_leased(table)).values(**RELEASED, due_at=next_due).returning(due)
