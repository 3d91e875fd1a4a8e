"""Rows that wait for a sandbox: unfinished start tasks, and conversations with work to do in it."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, literal, literal_column, or_, select, text, union_all, update
from sqlmodel import Session, col

from shared.db.database import Database
from shared.leasing import leases
from shared.models import Conversation, Sandbox, StartTask
from shared.models.conversations import IS_UNFINISHED, UNFINISHED
from shared.queue.jobs import Job, RefreshConversation, StartConversation
from shared.sql import locks
from shared.sql.statements import bind, bind_values, get_locked, send
from shared.states import Desired, Status


class Waiters(NamedTuple):
    """The ids of the rows to enqueue."""

    starts: Sequence[str] = ()
    conversations: Sequence[str] = ()

    def jobs(self, node_id: str | None) -> list[Job]:
        """Return the job messages of the rows, for the worker of that node."""
        starts = (StartConversation(task_id, node_id) for task_id in self.starts)
        refreshes = (RefreshConversation(conversation_id, node_id) for conversation_id in self.conversations)
        return [*starts, *refreshes]


NO_WAITERS = Waiters()
IS_DELETED = col(Sandbox.status) == literal_column("'DELETED'")
ON_NODE_OR_NONE = or_(leases.ON_NODE, col(Sandbox.node_id).is_(None), IS_DELETED)


def enqueue_waiters(session: Session, sandbox_id: str, at: datetime, waiting: Any = None) -> Waiters:
    """Mark the waiters of a sandbox due.

    Args:
        waiting: the statement that finds them: `WAITING` by default, or `WAITING_FOR_BOOT`.

    Returns:
        Their ids, to be enqueued after the commit.
    """
    rows = send(session, WAITING if waiting is None else waiting, bind_values(sandbox_id=sandbox_id))
    starts, conversations = ([row_id for table, row_id in rows if table == name] for name in (START, CONVERSATION))
    for table, ids in ((StartTask, starts), (Conversation, conversations)):
        listed = col(table.id).in_(ids)
        if len(ids) > 1:
            session.execute(locks.in_order(table, listed))
        if ids:
            session.execute(update(table).where(listed).values(due_at=at))
    return Waiters(starts, conversations)


def read_sandbox(database: Database, sandbox_id: str) -> Sandbox | None:
    """Return the sandbox of a waiter, detached from its session.

    A waiter whose sandbox does not run waits until `enqueue_waiters` marks it due. A transaction that is writing the
    status RUNNING may have called `enqueue_waiters` before the waiter was committed. So a sandbox that does not run is
    read a second time under a lock, after that transaction.
    """
    with database.reading() as session:
        sandbox = session.get(Sandbox, sandbox_id)
    if sandbox is None or sandbox.status == Status.RUNNING:
        return sandbox
    with database.transaction() as session:
        return get_locked(session, Sandbox, sandbox_id, key_share=True)


def find_due(session: Session, node_id: str, *, without_container: bool = False) -> Waiters:
    """Return the due waiters of a node's sandboxes, read without locks.

    Args:
        without_container: also return the waiters of all sandboxes without a node, and of all deleted ones: any worker
            processes them, because the worker of a deleted sandbox's node may never come back.
    """
    where = ON_NODE_OR_NONE if without_container else leases.ON_NODE
    tables: tuple[Any, ...] = (StartTask, Conversation)
    return Waiters(*(leases.find_due(session, table, _waits_for(table, where), node_id=node_id) for table in tables))


def find_starts_of_deleted(session: Session, node_id: str) -> Sequence[str]:
    """Return the start tasks that wait for a sandbox on a node whose deletion has not begun, read without locks.

    The node's worker enqueues them when it begins the deletion; the worker of a lost node does not.
    """
    deleted = (col(Sandbox.node_id) == node_id, col(Sandbox.desired) == Desired.DELETED)
    is_inactive = (col(StartTask.due_at).is_(None), col(StartTask.lease_until).is_(None), text(IS_UNFINISHED))
    found = select(col(StartTask.id)).join(Sandbox, col(Sandbox.id) == col(StartTask.sandbox_id))
    # Sorted here: with an ORDER BY, SQLite reads the whole table in that order.
    return sorted(session.scalars(found.where(*deleted, *is_inactive)).all())


def dequeue_due(session: Session, due: Waiters, *, again_at: datetime) -> Waiters:
    """Take the waiters that are still due, as `leases.dequeue_due` does."""
    starts = leases.dequeue_due(session, StartTask, due.starts, again_at=again_at)
    return Waiters(starts, leases.dequeue_due(session, Conversation, due.conversations, again_at=again_at))


@lru_cache
def _waits_for(table: Any, where: ColumnElement[bool]) -> ColumnElement[bool]:
    # A correlated EXISTS runs for each due row, of which there are few. An IN would list all such sandboxes.
    return select(col(Sandbox.id)).where(col(Sandbox.id) == table.sandbox_id, where).correlate(table).exists()


# --- prepared statement -----------------------------------------------------------------------------------------------

START, CONVERSATION = "start", "conversation"


def _waiting(name: str, table: Any, *conditions: Any) -> Any:
    return select(literal(name).label("table"), table.id).where(table.sandbox_id == bind("sandbox_id"), *conditions)


STARTS = _waiting(START, StartTask, *UNFINISHED)
RUNS = col(Conversation.execution_status) == literal_column("'running'")
# One statement for both tables, because it is sent for every sandbox that reaches its desired state.
WAITING = union_all(STARTS, _waiting(CONVERSATION, Conversation, col(Conversation.awaits_sandbox)))
# The same, with the agents that ran before their server was booted again: it may not report the end of their runs.
WAITING_FOR_BOOT = union_all(STARTS, _waiting(CONVERSATION, Conversation, or_(col(Conversation.awaits_sandbox), RUNS)))
