"""The change feed: each transaction that changes what users see appends to it, and clients follow it.

Each user has a sequence of numbers without gaps, and the lock on the user's feed is held from the first number until
the commit. So a client that has read up to a number has missed no earlier entry, and a removed entry shows as a gap.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, String, and_, bindparam, delete, insert, text, tuple_
from sqlmodel import Session, col, select

from shared.changes.recorder import Change
from shared.clock import now
from shared.models import ChangeEntry, ChangeFeed
from shared.models.columns import UtcDateTime
from shared.sql.prepared import send

RETENTION = timedelta(hours=24)
# Max entries per user. Older ones are removed every `REMOVED_EVERY` entries.
MAX_STORED = 10_000
REMOVED_EVERY = 1000

# The same SQL on SQLite and PostgreSQL.
ADVANCE = text(
    "INSERT INTO change_log (owner_id, last) VALUES (:owner_id, :count) "
    "ON CONFLICT (owner_id) DO UPDATE SET last = change_log.last + :count RETURNING last"
)
# Both in one message, for the most common end of a transaction. SQLite does not support it, and does not need it.
APPEND_ONE = text(
    "WITH advanced AS (INSERT INTO change_log (owner_id, last) VALUES (:owner_id, 1) "
    "ON CONFLICT (owner_id) DO UPDATE SET last = change_log.last + 1 RETURNING last) "
    "INSERT INTO change_entry (owner_id, number, kind, row_id, status, at) "
    "SELECT :owner_id, last, :kind, :row_id, :status, :at FROM advanced RETURNING number"
).bindparams(
    *(bindparam(name, type_=String()) for name in ("owner_id", "kind", "row_id", "status")),
    bindparam("at", type_=UtcDateTime()),
)


def append(session: Session, changes: Collection[Change]) -> None:
    """Append changes. This is the last action of a transaction, since it blocks the user's other transactions."""
    session.flush()
    by_owner = sorted(changes, key=lambda change: change.owner_id)  # one lock order prevents deadlocks
    for owner_id, group in groupby(by_owner, key=lambda change: change.owner_id):
        _append(session, owner_id, list(group))


def read(session: Session, owner_id: str, after: int, *, limit: int = 500) -> Sequence[ChangeEntry] | None:
    """The entries that follow a number, oldest first.

    Returns:
        None if some of them were removed, or if the number is not from this feed.
    """
    # Before the entries are read: a concurrent append must not appear as a gap.
    if last(session, [owner_id]).get(owner_id, 0) == after:
        return ()
    following = select(ChangeEntry).where(ChangeEntry.owner_id == owner_id, ChangeEntry.number > after)
    found = session.exec(following.order_by(col(ChangeEntry.number)).limit(limit)).all()
    unbroken = [entry.number for entry in found] == list(range(after + 1, after + 1 + len(found)))
    return found if found and unbroken else None


def last(session: Session, owner_ids: Collection[str]) -> dict[str, int]:
    """The number of the newest entry in each of these users' feeds that has one."""
    statement = select(ChangeFeed.owner_id, ChangeFeed.last).where(col(ChangeFeed.owner_id).in_(owner_ids))
    return dict(session.exec(statement).all())


def has_expired(session: Session) -> bool:
    """Whether there are expired entries."""
    return session.exec(select(ChangeEntry.number).where(_expired()).limit(1)).first() is not None


def delete_expired(session: Session, *, limit: int = 1000) -> None:
    """Delete expired entries."""
    key = tuple_(col(ChangeEntry.owner_id), col(ChangeEntry.number))
    # Workers sweep concurrently: each skips the rows that another worker has locked.
    found = select(ChangeEntry.owner_id, ChangeEntry.number).where(_expired()).limit(limit)
    keys = session.exec(found.with_for_update(skip_locked=True)).all()
    session.execute(delete(ChangeEntry).where(key.in_([tuple(one) for one in keys])))


def _append(session: Session, owner_id: str, changes: list[Change]) -> None:
    if len(changes) == 1 and session.get_bind().dialect.name == "postgresql":
        [[newest]] = send(session, APPEND_ONE, _describe(owner_id, changes[0]))
    else:
        [[newest]] = send(session, ADVANCE, {"owner_id": owner_id, "count": len(changes)})
        numbered = enumerate(changes, newest - len(changes) + 1)
        rows = [_describe(owner_id, change) | {"number": number} for number, change in numbered]
        session.execute(insert(ChangeEntry), rows)
    first = newest - len(changes) + 1
    if newest // REMOVED_EVERY != (first - 1) // REMOVED_EVERY:
        old = and_(col(ChangeEntry.owner_id) == owner_id, col(ChangeEntry.number) <= newest - MAX_STORED)
        session.execute(delete(ChangeEntry).where(old))


def _describe(owner_id: str, change: Change) -> dict[str, Any]:
    return {"owner_id": owner_id, "kind": change.kind, "row_id": change.row_id, "status": change.status, "at": now()}


def _expired() -> ColumnElement[bool]:
    return col(ChangeEntry.at) <= now() - RETENTION
