"""The tables that operations fill."""

from sqlalchemy import delete, exists, or_
from sqlmodel import col, select

from shared.db.database import Database
from shared.models import (
    Conversation,
    Event,
    IdempotencyKey,
    PendingMessage,
    Sandbox,
    SandboxLog,
    SandboxTransition,
    StaleContainer,
    StartTask,
)

# The tables, in the order in which they can be emptied.
OF_SANDBOXES = (SandboxTransition, SandboxLog, StaleContainer)
FILLED = (PendingMessage, Event, StartTask, Conversation, *OF_SANDBOXES, IdempotencyKey, Sandbox)
WORK = [col(one.due_at).is_not(None) | col(one.lease_until).is_not(None) for one in (Sandbox, StartTask, Conversation)]
# One statement, because it is polled many times a second.
IS_BUSY = select(or_(*(exists().where(wanted) for wanted in WORK)))


def is_busy(database: Database) -> bool:
    """Whether any row is due or leased."""
    with database.reading() as session:
        return session.exec(IS_BUSY).one()


def empty_tables(database: Database) -> None:
    """Delete all rows of these tables."""
    with database.transaction() as session:
        for table in FILLED:
            session.execute(delete(table))
