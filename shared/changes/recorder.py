"""The changes of a transaction: recorded by the code that writes users' rows, published after the commit."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sqlmodel import Session

from shared.models import Conversation, StartTask
from shared.states import Desired, Status

CHANGES = "changes"


class Kind(StrEnum):
    """The kind of a changed row."""

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
    """A changed row of a user."""

    owner_id: str
    kind: Kind
    row_id: str
    # A sandbox's status, a start task's stage, a conversation's execution status.
    status: str | None


def record_change(session: Session, row: StartTask | Conversation | ShownSandbox) -> None:
    """Record a change of this row, unless its owner cannot see the row."""
    hidden = isinstance(row, Conversation) and not row.listed
    if row.owner_id is not None and not hidden:
        record_change_of(session, Change(row.owner_id, *_describe(row)))


def record_change_of(session: Session, change: Change) -> None:
    """Record a change."""
    _recorded(session)[change.row_id] = change


def recorded_changes(session: Session) -> Collection[Change]:
    """The changes recorded in this session, the last one of each row."""
    return _recorded(session).values()


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
