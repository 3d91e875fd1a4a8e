"""Leases: one hand on a row at a time (law 4).

A row whose `due_at` is set wants a worker. Claiming clears `due_at`, so that whoever sets it again meanwhile (a new
wish, an engine event) is seen by the holder when it lets go. A holder that dies leaves `lease_until` behind, and the
sweep takes an expired lease for a wish of its own.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, CursorResult, and_, case, or_, true, update
from sqlmodel import Session, col, select

from shared.clock import now
from shared.errors import LeaseLost
from shared.models import Conversation, Sandbox, StartTask

Row = TypeVar("Row", Sandbox, StartTask, Conversation)


def claim(
    session: Session,
    table: type[Row],
    row_id: str,
    owner: str,
    seconds: float,
    *,
    where: ColumnElement[bool] | None = None,
) -> Row | None:
    """Take a row that wants a hand, for so many seconds; `where`: only if this is true of it.

    Returns:
        The row with its new fence; None when it wants nothing or somebody else holds it.
    """
    wants = or_(col(table.due_at).is_not(None), col(table.lease_until).is_not(None))
    free = or_(col(table.lease_until).is_(None), col(table.lease_until) < now())
    values = {
        "lease_owner": owner,
        "lease_until": now() + timedelta(seconds=seconds),
        "fence": col(table.fence) + 1,
        "due_at": None,
    }
    mine = and_(col(table.id) == row_id, wants, free, true() if where is None else where)
    if _update(session, table, mine, values) == 0:
        return None
    return session.get(table, row_id, populate_existing=True)


def renew(session: Session, table: type[Row], row_id: str, fence: int, seconds: float) -> None:
    """Hold the row for so many seconds more.

    Raises:
        LeaseLost: the fence has moved on.
    """
    write(session, table, row_id, fence, lease_until=now() + timedelta(seconds=seconds))


def write(session: Session, table: type[Row], row_id: str, fence: int, **values: Any) -> None:
    """Write the holder's facts: one conditional UPDATE that shows its fence (law 3).

    Raises:
        LeaseLost: the fence has moved on; nothing was written.
    """
    mine = and_(col(table.id) == row_id, col(table.fence) == fence)
    if _update(session, table, mine, values) == 0:
        raise LeaseLost(f"{table.__tablename__} {row_id}: fence {fence} is no longer ours")


def release(session: Session, table: type[Row], row_id: str, fence: int, retry_at: datetime | None = None) -> None:
    """Let the row go, and ask for another look at `retry_at` unless somebody has asked for one already.

    Raises:
        LeaseLost: the fence has moved on.
    """
    due = col(table.due_at)
    next_due = case((due.is_(None), retry_at), else_=due) if retry_at else due
    write(session, table, row_id, fence, lease_owner=None, lease_until=None, due_at=next_due)


def mark_due(session: Session, table: type[Row], row_id: str, at: datetime) -> None:
    """Ask for a look at the row, at once or by then."""
    _update(session, table, col(table.id) == row_id, {"due_at": at})


def take_due(
    session: Session, table: type[Row], where: ColumnElement[bool], *, again_at: datetime, limit: int = 500
) -> Sequence[str]:
    """The ids of rows that want a hand and have none, each handed to one caller only.

    Their `due_at` moves on to `again_at`, the time they are handed out again should nobody claim them.
    """
    waiting = and_(col(table.lease_until).is_(None), col(table.due_at) <= now())
    not_handed_out = or_(col(table.due_at).is_(None), col(table.due_at) <= now())
    abandoned = and_(col(table.lease_until) < now(), not_handed_out)
    due = (
        select(table.id, table.due_at, table.fence)
        .where(where, or_(waiting, abandoned))
        .order_by(col(table.id))
        .limit(limit)
    )
    rows: Sequence[Any] = session.exec(due).all()
    return [row.id for row in rows if _postpone(session, table, row, again_at)]


def _postpone(session: Session, table: type[Row], row: Any, again_at: datetime) -> bool:
    unchanged = and_(
        col(table.id) == row.id,
        col(table.fence) == row.fence,
        col(table.due_at).is_not_distinct_from(row.due_at),
    )
    return _update(session, table, unchanged, {"due_at": again_at}) == 1


def _update(session: Session, table: type[Row], where: ColumnElement[bool], values: dict[str, Any]) -> int:
    statement = update(table).where(where).values(**values).execution_options(synchronize_session=False)
    result: CursorResult[Any] = session.execute(statement)  # type: ignore[assignment]
    return result.rowcount
