"""What waits for a sandbox: start tasks, until it settles, and conversations that have something to do in it."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, literal, select, union_all, update
from sqlmodel import Session, col

from shared.leasing import leases
from shared.models import Conversation, Sandbox, StartTask
from shared.models.conversations import UNFINISHED
from shared.queue.jobs import Job, RefreshConversation, StartConversation
from shared.sql import locks
from shared.sql.prepared import give, given, send


class Waiters(NamedTuple):
    """The ids of the rows that are to be looked at."""

    starts: Sequence[str] = ()
    conversations: Sequence[str] = ()

    def jobs(self, node_id: str | None) -> list[Job]:
        """What hurries them, for the worker of that node."""
        starts = (StartConversation(task_id, node_id) for task_id in self.starts)
        talks = (RefreshConversation(conversation_id, node_id) for conversation_id in self.conversations)
        return [*starts, *talks]


NOBODY = Waiters()


def enqueue_waiters(session: Session, sandbox_id: str, at: datetime) -> Waiters:
    """Ask for a look at them.

    Returns:
        Its ids, to be published after the commit.
    """
    rows = send(session, WAITING, give(sandbox_id=sandbox_id))
    starts, talks = ([row_id for table, row_id in rows if table == name] for name in (START, TALK))
    for table, ids in ((StartTask, starts), (Conversation, talks)):
        listed = col(table.id).in_(ids)
        if len(ids) > 1:
            session.execute(locks.in_order(table, listed))
        if ids:
            session.execute(update(table).where(listed).values(due_at=at))
    return Waiters(starts, talks)


def find_due(session: Session, where: ColumnElement[bool], **values: Any) -> Waiters:
    """The followers of sandboxes of which this is true that want a worker and have none, without a lock.

    Args:
        where: keep it, as for `leases.claim`.
        values: what it has been `given`.
    """
    tables: tuple[Any, ...] = (StartTask, Conversation)
    return Waiters(*(leases.find_due(session, table, _follows(table, where), **values) for table in tables))


def take_due(session: Session, due: Waiters, *, again_at: datetime) -> Waiters:
    """Those of them that still want one, each handed to one caller only; again at `again_at` should nobody claim it."""
    starts = leases.dequeue_due(session, StartTask, due.starts, again_at=again_at)
    return Waiters(starts, leases.dequeue_due(session, Conversation, due.conversations, again_at=again_at))


@lru_cache
def _follows(table: Any, where: ColumnElement[bool]) -> ColumnElement[bool]:
    # Looked up for each row that is due, of which there are few; a list of all such sandboxes would be made of all.
    return select(col(Sandbox.id)).where(col(Sandbox.id) == table.sandbox_id, where).correlate(table).exists()


# --- the statement, made once -----------------------------------------------------------------------------------------

START, TALK = "start", "talk"


def _waiting(name: str, table: Any, *conditions: Any) -> Any:
    return select(literal(name).label("table"), table.id).where(table.sandbox_id == given("sandbox_id"), *conditions)


# One message for both: it is on the way of every sandbox that settles.
WAITING = union_all(
    _waiting(START, StartTask, *UNFINISHED), _waiting(TALK, Conversation, col(Conversation.awaits_sandbox))
)
