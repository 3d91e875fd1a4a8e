"""Events: stored without duplicates, read in the order of their timestamps."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, func
from sqlalchemy.dialects import postgresql, sqlite
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.changes.recorder import Usage
from shared.ids import spellings
from shared.models import Conversation, Event
from shared.sql.pagination import Order, Page, check_batch, measure, read_bounded_page

STATE = "ConversationStateUpdateEvent"
ERROR = "ConversationErrorEvent"
MESSAGE = "MessageEvent"
# The number of events that `newest` returns: more than the tools that an agent runs concurrently.
NEWEST = 10
# The number of events that `status_reports` returns: more than an agent server sends between the ends of two runs.
STATUS_REPORTS = 10
# The number of messages that `find_user_message` reads: more than an agent sends between two messages of its user.
MESSAGES = 10
# The number of events among which the above are searched: a sandbox may report any number of other kinds. Many events
# may follow a user's message.
SEARCHED, SEARCHED_FOR_MESSAGES = 1000, 10_000


@dataclass(frozen=True)
class EventFilter:
    """A selection of events; a field that is None does not filter."""

    kind: str | None = None
    timestamp_from: datetime | None = None
    timestamp_before: datetime | None = None


def store(session: Session, events: Sequence[Event]) -> Usage:
    """Store events. An event that is stored already stays unchanged.

    Returns:
        The number and the bytes of the new events. The caller adds them to the owner's usage.
    """
    if not events:
        return Usage()
    dialect = session.get_bind().dialect.name
    insert = postgresql.insert if dialect == "postgresql" else sqlite.insert
    names = [name for name in Event.model_fields if name != "seq"]
    # Rows are passed separately from the statement: a batch may have more values than one statement can bind.
    rows = [{name: getattr(event, name) for name in names} for event in events]
    statement = insert(Event).on_conflict_do_nothing(index_elements=["conversation_id", "id"])
    sizes = session.execute(statement.returning(measure(session, col(Event.body))), rows).scalars().all()
    return Usage(events=len(sizes), event_bytes=sum(sizes))


def remove(session: Session, owner_id: str, which: ColumnElement[bool]) -> int:
    """Remove the owner's events that match a condition, and return their number."""
    removed = session.execute(delete(Event).where(which).returning(measure(session, col(Event.body)))).scalars().all()
    change_recorder.record_usage(session, owner_id, Usage(events=-len(removed), event_bytes=-sum(removed)))
    return len(removed)


def search(
    session: Session,
    conversation_id: str,
    owner_id: str,
    which: EventFilter,
    *,
    descending: bool,
    page_id: str | None,
    limit: int,
) -> Page[Event]:
    """A page of a conversation's events.

    The page is empty if the conversation is unknown or belongs to another user (wire contract 1.3).
    It has fewer than `limit` events if these together exceed `MAX_PAGE_BYTES`, but always at least one.
    """
    order = Order(col(Event.timestamp), col(Event.seq), descending, of=conversation_id)
    conditions = _conditions(conversation_id, owner_id, which)
    sizes = select(measure(session, col(Event.body))).where(*conditions)
    return read_bounded_page(session, select(Event).where(*conditions), sizes, order, page_id, limit)


def newest(session: Session, conversation_id: str) -> Sequence[Event]:
    """The newest events of a conversation of any owner, newest first, without state updates."""
    nearest = _nearest(conversation_id, SEARCHED, descending=True)
    return _read(session, nearest, nearest.c.kind != STATE, NEWEST, descending=True)


def find_user_message(session: Session, conversation_id: str, before: datetime) -> str | None:
    """The id of the newest message that a user sent before that time; None: the newest messages are the agent's."""
    nearest = _nearest(conversation_id, SEARCHED_FOR_MESSAGES, Event.timestamp < before, descending=True)
    messages = _read(session, nearest, nearest.c.kind == MESSAGE, MESSAGES, descending=True)
    return next((message.id for message in messages if message.body.get("source") == "user"), None)


def status_reports(session: Session, conversation_id: str, after: datetime) -> Sequence[Event]:
    """The first events after that time that may report a status of the conversation, oldest first."""
    nearest = _nearest(conversation_id, SEARCHED, Event.timestamp > after, descending=False)
    return _read(session, nearest, nearest.c.kind.in_((STATE, ERROR)), STATUS_REPORTS, descending=False)


def count(session: Session, conversation_id: str, owner_id: str, which: EventFilter) -> int:
    """The number of events that `search` lists with this filter."""
    statement = select(func.count()).select_from(Event).where(*_conditions(conversation_id, owner_id, which))
    return session.exec(statement).one()


def get_many(session: Session, conversation_id: str, owner_id: str, ids: list[str]) -> list[Event | None]:
    """The conversation's events with those ids, in that order; None for an unknown id.

    Agent servers choose the ids, usually UUIDs with dashes. A UUID is found in any of its spellings.

    Raises:
        TooLarge: two or more events together exceed `MAX_PAGE_BYTES`.
    """
    written = {spelling for event_id in ids for spelling in spellings(event_id)}
    conditions = [*_conditions(conversation_id, owner_id, EventFilter()), col(Event.id).in_(written)]
    check_batch(session.exec(select(measure(session, col(Event.body))).where(*conditions)).all(), "events")
    found = {event.id: event for event in session.exec(select(Event).where(*conditions)).all()}
    return [next((found[name] for name in spellings(event_id) if name in found), None) for event_id in ids]


def _nearest(conversation_id: str, number: int, *where: Any, descending: bool) -> Any:
    """The first events of a conversation, of any kind, without their bodies."""
    found = select(Event.seq, Event.kind, Event.timestamp).where(Event.conversation_id == conversation_id, *where)
    return found.order_by(*_order(Event, descending=descending)).limit(number).subquery()


def _read(
    session: Session, nearest: Any, which: ColumnElement[bool], limit: int, *, descending: bool
) -> Sequence[Event]:
    """Read the first events that match a condition on `nearest`."""
    chosen = select(nearest.c.seq).where(which).order_by(*_order(nearest.c, descending=descending)).limit(limit)
    found = select(Event).where(col(Event.seq).in_(chosen)).order_by(*_order(Event, descending=descending))
    return session.exec(found).all()


def _order(of: Any, *, descending: bool) -> list[Any]:
    return [column.desc() if descending else column for column in (of.timestamp, of.seq)]


def _conditions(conversation_id: str, owner_id: str, which: EventFilter) -> list[Any]:
    owned = select(Conversation.id).where(
        Conversation.id == conversation_id, Conversation.owner_id == owner_id, col(Conversation.listed)
    )
    conditions: list[Any] = [Event.conversation_id == conversation_id, owned.exists()]
    if which.kind is not None:
        conditions.append(Event.kind == which.kind)
    if which.timestamp_from is not None:
        conditions.append(col(Event.timestamp) >= which.timestamp_from)
    if which.timestamp_before is not None:
        conditions.append(col(Event.timestamp) < which.timestamp_before)
    return conditions
