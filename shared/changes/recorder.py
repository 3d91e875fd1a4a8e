"""What a transaction records about users' rows and writes at its end: the stored usage, then the entries of the feed.

The lock on the user's feed is held from the first number until the commit, so that readers see no gap. The row of the
user's usage is locked before the feed, and no other row after the usage. A webhook, which locks one conversation only,
writes the usage immediately, and so learns whether a quota is exceeded.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from sqlalchemy import String, and_, bindparam, delete, insert, text
from sqlmodel import Session, col

from shared.clock import now
from shared.models import ChangeEntry, Conversation, StartTask, StoredUsage
from shared.models.columns import UtcDateTime
from shared.sql.statements import send
from shared.states import Desired, Status

CHANGES, USAGE = "changes", "stored_usage"
# Max entries per user. Older ones are removed every `REMOVED_EVERY` entries.
MAX_STORED = 10_000
REMOVED_EVERY = 1000

# The same SQL on SQLite and PostgreSQL.
ADVANCE = text(
    "INSERT INTO change_log (owner_id, last) VALUES (:owner_id, :count) "
    "ON CONFLICT (owner_id) DO UPDATE SET last = change_log.last + :count RETURNING last"
)
# Advances the feed and appends an entry in one message, for the most common end of a transaction. SQLite does not
# support it, and does not need it.
APPEND_ONE = text(
    "WITH advanced AS (INSERT INTO change_log (owner_id, last) VALUES (:owner_id, 1) "
    "ON CONFLICT (owner_id) DO UPDATE SET last = change_log.last + 1 RETURNING last) "
    "INSERT INTO change_entry (owner_id, number, kind, row_id, status, at) "
    "SELECT :owner_id, last, :kind, :row_id, :status, :at FROM advanced RETURNING number"
).bindparams(
    *(bindparam(name, type_=String()) for name in ("owner_id", "kind", "row_id", "status")),
    bindparam("at", type_=UtcDateTime()),
)
ADD_USAGE = text(
    "INSERT INTO stored_usage (owner_id, conversations, events, event_bytes) "
    "VALUES (:owner_id, :conversations, :events, :event_bytes) "
    "ON CONFLICT (owner_id) DO UPDATE SET conversations = stored_usage.conversations + :conversations, "
    "events = stored_usage.events + :events, event_bytes = stored_usage.event_bytes + :event_bytes "
    "RETURNING conversations, events, event_bytes"
)


class Kind(StrEnum):
    SANDBOX = "sandbox"
    START_TASK = "start_task"
    CONVERSATION = "conversation"


class ShownSandbox(Protocol):
    """The part of a sandbox's row that the change feed shows its owner."""

    @property
    def id(self) -> str:
        """The sandbox's id."""

    @property
    def owner_id(self) -> str | None:
        """None for a warm sandbox."""

    @property
    def desired(self) -> str:
        """The desired state."""

    @property
    def status(self) -> str:
        """The observed state."""


@dataclass(frozen=True)
class Change:
    owner_id: str
    kind: Kind
    row_id: str
    # A sandbox's status, a start task's stage, a conversation's execution status.
    status: str | None


class Usage(NamedTuple):
    """An amount of what is stored, or its change."""

    conversations: int = 0
    events: int = 0
    event_bytes: int = 0


def record_change(session: Session, row: StartTask | Conversation | ShownSandbox) -> None:
    """Record a change of this row, unless its owner cannot see the row."""
    hidden = isinstance(row, Conversation) and not row.listed
    if row.owner_id is not None and not hidden:
        record_change_of(session, Change(row.owner_id, *_describe(row)))


def record_change_of(session: Session, change: Change) -> None:
    _recorded(session)[change.row_id] = change


def record_usage(session: Session, owner_id: str, change: Usage) -> None:
    """Record a change of a user's stored usage, to be written at the end of the transaction."""
    recorded: dict[str, Usage] = session.info.setdefault(USAGE, {})
    before = recorded.get(owner_id, Usage())
    recorded[owner_id] = Usage(*(one + other for one, other in zip(before, change, strict=True)))


def add_usage(session: Session, owner_id: str, change: Usage) -> Usage:
    """Write a change of a user's stored usage immediately. No other row may be locked after this.

    Returns:
        What is stored for the user.
    """
    return Usage(*session.execute(ADD_USAGE, {"owner_id": owner_id, **change._asdict()}).one())


def read_usage(session: Session, owner_id: str) -> Usage:
    """Return what is stored for a user, as far as it is committed."""
    row = session.get(StoredUsage, owner_id, populate_existing=True)
    return Usage(row.conversations, row.events, row.event_bytes) if row else Usage()


def write_recorded(session: Session) -> Collection[Change]:
    """Write what was recorded. This is the last action of a transaction: it blocks the user's other transactions.

    Returns:
        The changes, the last one of each row.
    """
    usage: dict[str, Usage] = session.info.pop(USAGE, {})
    if usage:
        session.flush()  # the rows that it locks precede the usage in the lock order
    for owner_id in sorted(usage):  # one lock order prevents deadlocks
        if any(usage[owner_id]):
            add_usage(session, owner_id, usage[owner_id])
    if changes := _recorded(session).values():
        append(session, changes)
    return changes


def append(session: Session, changes: Collection[Change]) -> None:
    """Append changes to the feeds of their owners."""
    session.flush()
    by_owner = sorted(changes, key=lambda change: change.owner_id)  # one lock order prevents deadlocks
    for owner_id, group in groupby(by_owner, key=lambda change: change.owner_id):
        _append(session, owner_id, list(group))


@contextmanager
def savepoint(session: Session) -> Iterator[None]:
    """A part of the transaction that may fail alone. Its rollback also discards what was recorded in `session.info`."""
    before = {name: copy(recorded) for name, recorded in session.info.items()}
    try:
        with session.begin_nested():
            yield
    except BaseException:
        session.info.clear()
        session.info.update(before)
        raise


def _describe(row: StartTask | Conversation | ShownSandbox) -> tuple[Kind, str, str | None]:
    match row:
        case StartTask():
            return Kind.START_TASK, row.id, row.stage
        case Conversation():
            return Kind.CONVERSATION, row.id, row.execution_status
    is_deleting = row.desired == Desired.DELETED and row.status != Status.DELETED
    return Kind.SANDBOX, row.id, Status.DELETING if is_deleting else row.status


def _recorded(session: Session) -> dict[str, Change]:
    recorded: dict[str, Change] = session.info.setdefault(CHANGES, {})
    return recorded


def _append(session: Session, owner_id: str, changes: list[Change]) -> None:
    if len(changes) == 1 and session.get_bind().dialect.name == "postgresql":
        [[newest]] = send(session, APPEND_ONE, _entry_of(owner_id, changes[0]))
    else:
        [[newest]] = send(session, ADVANCE, {"owner_id": owner_id, "count": len(changes)})
        numbered = enumerate(changes, newest - len(changes) + 1)
        rows = [_entry_of(owner_id, change) | {"number": number} for number, change in numbered]
        session.execute(insert(ChangeEntry), rows)
    first = newest - len(changes) + 1
    if newest // REMOVED_EVERY != (first - 1) // REMOVED_EVERY:
        old = and_(col(ChangeEntry.owner_id) == owner_id, col(ChangeEntry.number) <= newest - MAX_STORED)
        session.execute(delete(ChangeEntry).where(old))


def _entry_of(owner_id: str, change: Change) -> dict[str, Any]:
    return {"owner_id": owner_id, "kind": change.kind, "row_id": change.row_id, "status": change.status, "at": now()}
