"""Leases: one hand on a row at a time (law 4).

A row whose `due_at` is set wants a worker. Claiming clears `due_at`, so that whoever sets it again meanwhile (a new
wish, an engine event) is seen by the holder when it lets go. A holder that dies leaves `lease_until` behind, and the
sweep takes an expired lease for a wish of its own.

Clocks are set. A time further ahead than anybody honestly sets one was written by a clock that was wrong, and counts as
past: else a row would wait for as long as that clock was off. A clock that is ahead costs its neighbours a lease, which
their fences make harmless.
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
from shared.sql.prepared import Rows, all_columns, give, given, make_row, send

Row = TypeVar("Row", Sandbox, StartTask, Conversation)

# The longest lease, and the longest that a row may ask not to be looked at.
MAX_SECONDS = 15.0
# What frees a row, for a holder whose last facts go with it.
LET_GO: dict[str, Any] = {"lease_owner": None, "lease_until": None}
# With something to spare for clocks that differ a little.
FARTHEST = timedelta(seconds=20)


class Freed(NamedTuple):
    """How many rows of a dead owner were freed, and whether these were all: somebody may have locked others."""

    number: int
    is_complete: bool


class Backlog(NamedTuple):
    """What wants a hand and was not picked up yet.

    Args:
        waiting: so many rows.
        due: those among them whose time to be handed out has come and was passed over.
        oldest_due_at: the earliest time of these.
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
    """Take a row that wants a hand, for so many seconds.

    Args:
        where: only if this is true of it. Keep it: it is what the statement is known by.

    Returns:
        The row with its new fence, which belongs to no session; None when it wants nothing or somebody else holds it.
    """
    return _made(table, send(session, _claiming(table, where), _claimant(row_id, owner, seconds)))


def claim_and_commit(
    database: Database,
    table: type[Row],
    row_id: str,
    owner: str,
    seconds: float,
    *,
    where: ColumnElement[bool] | None = None,
) -> Row | None:
    """The same, committed: on PostgreSQL in one message."""
    return _made(table, database.execute_and_commit(_claiming(table, where), _claimant(row_id, owner, seconds)))


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
    """Write the holder's facts: one conditional UPDATE that shows its fence (law 3).

    Args:
        still: and only if these columns have these values still.
        returning: the columns to be told.

    Returns:
        What these columns have by now.

    Raises:
        LeaseLost: the fence has moved on, or that is not so; nothing was written.
    """
    seen = {f"still_{name}": value for name, value in (still or {}).items()}
    statement = _writing(table, tuple(values), tuple(still or ()), returning)
    for row in send(session, statement, give(row_id=row_id, fence=fence, **values, **seen)):
        return row
    raise _lost(table, row_id, fence)


def hold(session: Session, table: type[Row], row_id: str, fence: int) -> None:
    """Lock the row until the transaction ends, before what stands behind it in the order of `shared.sql.locks`.

    Raises:
        LeaseLost: the fence has moved on.
    """
    if not send(session, _holding(table), give(row_id=row_id, fence=fence)):
        raise _lost(table, row_id, fence)


def release(session: Session, table: type[Row], row_id: str, fence: int, retry_at: datetime | None = None) -> bool:
    """Let the row go, and ask for another look at `retry_at` unless somebody has asked for one already.

    Returns:
        Whether it wants another look, now or later.

    Raises:
        LeaseLost: the fence has moved on.
    """
    for (due_at,) in send(session, _releasing(table), give(row_id=row_id, fence=fence, retry_at=retry_at)):
        return due_at is not None
    raise _lost(table, row_id, fence)


def expire_leases_of(
    session: Session, table: type[Row], owner: str, at: datetime, *, where: ColumnElement[bool] | None = None
) -> Freed:
    """Take away what an owner holds who is dead, and ask for a look at it; `where`: only where this is true.

    A row that somebody has locked is left for the next call.
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
    """Ask for a look at the row, at once or by then; one that was asked for earlier stays.

    Args:
        where: only if this is true of the row.
    """
    due, asked = col(table.due_at), and_(col(table.id) == row_id, true() if where is None else where)
    _update(session, table, asked, {"due_at": case((due < at, due), else_=at)})


def find_due(
    session: Session, table: type[Row], where: ColumnElement[bool], *, limit: int = 500, **values: Any
) -> list[str]:
    """The ids of rows that want a worker and have none, without a lock: those that have waited longest come first.

    In two queries, each along an index of the rows it is about: SQLite would read the whole table for both at once.

    Args:
        where: only those of which this is true. Keep it, as for `claim`.
        values: what it has been `given`.
    """
    asked = give(**values) | give(**_times())
    rows = (send(session, statement, asked) for statement in _finding_due(table, where, limit))
    return list(dict.fromkeys(row_id for found in rows for (row_id,) in found))[:limit]


def dequeue_due(session: Session, table: type[Row], ids: Collection[str], *, again_at: datetime) -> Sequence[str]:
    """Those of the rows that still want a worker and have none, each handed to one caller only.

    Their `due_at` moves on to `again_at`, the time they are handed out again should nobody claim them. A row that
    somebody has locked is left to the next sweep.
    """
    due = or_(_is_waiting(table), _is_abandoned(table))
    unlocked = locks.in_order(table, and_(col(table.id).in_(ids), due), skip_locked=True)
    taken = session.execute(unlocked, give(**_times())).scalars().all() if ids else ()
    if taken:
        _update(session, table, col(table.id).in_(taken), {"due_at": again_at})
    return taken


def backlog(session: Session, table: type[Row]) -> Backlog:
    """How much of a table waits for a hand."""
    due = col(table.due_at)
    counts = (func.count(), func.count().filter(_is_past(due)), func.min(due).filter(_is_past(due)))
    return Backlog(*session.execute(select(*counts).where(due.is_not(None)), give(**_times())).one())


def is_held(lease_until: datetime | None) -> bool:
    """Whether somebody holds a row with this lease now."""
    return lease_until is not None and now() <= lease_until <= now() + FARTHEST


def _update(session: Session, table: type[Row], where: ColumnElement[bool], values: dict[str, Any]) -> int:
    statement = update(table).where(where).values(**values).execution_options(synchronize_session=False)
    result: CursorResult[Any] = session.execute(statement)  # type: ignore[assignment]
    return result.rowcount


def _claimant(row_id: str, owner: str, seconds: float) -> dict[str, Any]:
    until = now() + timedelta(seconds=seconds)
    return give(row_id=row_id, lease_owner=owner, lease_until=until, **_times())


def _made(table: type[Row], rows: Rows) -> Row | None:
    return make_row(table, rows[0]) if rows else None


def _lost(table: type[Row], row_id: str, fence: int) -> LeaseLost:
    return LeaseLost(f"{table.__tablename__} {row_id}: fence {fence} is no longer ours")


# --- the statements, made once --------------------------------------------------------------------------------------


def _times() -> dict[str, datetime]:
    """What `_is_past` is reckoned by."""
    moment = now()
    return {"now": moment, "farthest": moment + FARTHEST}


def _is_past(column: Any) -> ColumnElement[bool]:
    return or_(column < given("now", UtcDateTime()), column > given("farthest", UtcDateTime()))


def _is_waiting(table: type[Row]) -> ColumnElement[bool]:
    """Due, and nobody holds it."""
    # In the words of its index: from a comparison alone SQLite does not conclude that it may use that.
    due = col(table.due_at)
    return and_(due.is_not(None), _is_past(due), col(table.lease_until).is_(None))


def _is_abandoned(table: type[Row]) -> ColumnElement[bool]:
    """Its lease has run out, and it was not handed out since."""
    due, until = col(table.due_at), col(table.lease_until)
    return and_(until.is_not(None), _is_past(until), or_(due.is_(None), _is_past(due)))


def _mine(table: type[Row]) -> ColumnElement[bool]:
    return and_(col(table.id) == given("row_id"), col(table.fence) == given("fence"))


@lru_cache(maxsize=64)
def _claiming(table: type[Row], where: ColumnElement[bool] | None) -> Any:
    wants = or_(col(table.due_at).is_not(None), col(table.lease_until).is_not(None))
    free = or_(col(table.lease_until).is_(None), _is_past(col(table.lease_until)))
    values = {name: given(name) for name in ("lease_owner", "lease_until")}
    mine = and_(col(table.id) == given("row_id"), wants, free, true() if where is None else where)
    taken = update(table).where(mine).values(**values, fence=col(table.fence) + 1, due_at=None)
    return taken.returning(*all_columns(table))


@lru_cache(maxsize=64)
def _finding_due(table: type[Row], where: ColumnElement[bool], limit: int) -> tuple[Any, Any]:
    waiting = select(table.id).where(where, _is_waiting(table)).order_by(col(table.due_at))
    abandoned = select(table.id).where(where, _is_abandoned(table)).order_by(col(table.lease_until))
    return waiting.limit(limit), abandoned.limit(limit)


@lru_cache
def _holding(table: type[Row]) -> Any:
    return locks.in_order(table, _mine(table))


@lru_cache(maxsize=256)
def _writing(table: type[Row], names: tuple[str, ...], still: tuple[str, ...], returning: tuple[str, ...]) -> Any:
    seen = (getattr(table, name).is_not_distinct_from(given(f"still_{name}")) for name in still)
    written = update(table).where(_mine(table), *seen).values({name: given(name) for name in names})
    return written.returning(*(getattr(table, name) for name in returning or ("id",)))


@lru_cache
def _releasing(table: type[Row]) -> Any:
    due = col(table.due_at)
    next_due = case((due.is_(None), given("retry_at", UtcDateTime())), else_=due)
    return update(table).where(_mine(table)).values(**LET_GO, due_at=next_due).returning(due)
