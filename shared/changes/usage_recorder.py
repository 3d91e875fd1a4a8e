"""How much is stored for each user, counted in the transactions that change it.

Most transactions record what they add and remove, and write the sum at their end: the row of a user's usage is locked
until the commit, and nothing but the change feed may be locked after it. A webhook, which locks one conversation only,
writes at once, and so learns whether a quota is exceeded.
"""

from typing import NamedTuple

from sqlalchemy import text
from sqlmodel import Session

from shared.models import StoredUsage

USAGE = "stored_usage"
# The same SQL on SQLite and PostgreSQL.
ADD = text(
    "INSERT INTO stored_usage (owner_id, conversations, events, event_bytes) "
    "VALUES (:owner_id, :conversations, :events, :event_bytes) "
    "ON CONFLICT (owner_id) DO UPDATE SET conversations = stored_usage.conversations + :conversations, "
    "events = stored_usage.events + :events, event_bytes = stored_usage.event_bytes + :event_bytes "
    "RETURNING conversations, events, event_bytes"
)


class Usage(NamedTuple):
    """An amount of what is stored, or its change."""

    conversations: int = 0
    events: int = 0
    event_bytes: int = 0


def record(session: Session, owner_id: str, change: Usage) -> None:
    """Record a change, to be written at the end of the transaction."""
    recorded: dict[str, Usage] = session.info.setdefault(USAGE, {})
    before = recorded.get(owner_id, Usage())
    recorded[owner_id] = Usage(*(one + other for one, other in zip(before, change, strict=True)))


def add(session: Session, owner_id: str, change: Usage) -> Usage:
    """Write a change at once, and return the user's usage with it. No other row may be locked after this."""
    row = session.execute(ADD, {"owner_id": owner_id, **change._asdict()}).one()
    return Usage(*row)


def write_recorded(session: Session) -> None:
    """Write the recorded changes, at the end of the transaction."""
    recorded: dict[str, Usage] = session.info.pop(USAGE, {})
    session.flush()  # what it locks comes before the usage
    for owner_id in sorted(recorded):  # one lock order prevents deadlocks
        if any(recorded[owner_id]):
            add(session, owner_id, recorded[owner_id])


def read(session: Session, owner_id: str) -> Usage:
    """Return what is stored for a user, as far as it is committed."""
    row = session.get(StoredUsage, owner_id, populate_existing=True)
    return Usage(row.conversations, row.events, row.event_bytes) if row else Usage()
