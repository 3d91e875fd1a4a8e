"""What a transaction changes: noted by the doors of the rows that users see, told once it is committed."""

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
    """What users have that changes."""

    SANDBOX = "sandbox"
    START_TASK = "start_task"
    CONVERSATION = "conversation"


class ShownSandbox(Protocol):
    """As much of a sandbox's row as its owner is told of."""

    @property
    def id(self) -> str:
        """As in the row, and so are the others."""

    @property
    def owner_id(self) -> str | None:
        """None: the warm pool's."""

    @property
    def desired(self) -> str:
        """What is wished."""

    @property
    def status(self) -> str:
        """What is so."""


@dataclass(frozen=True)
class Change:
    """A row of somebody's that is not what it was."""

    owner_id: str
    kind: Kind
    row_id: str
    # A sandbox's status, a start task's stage, a conversation's execution status.
    status: str | None


def record_change(session: Session, row: StartTask | Conversation | ShownSandbox) -> None:
    """Say that this row changes with this transaction; what its owner can't see is nobody's business."""
    hidden = isinstance(row, Conversation) and not row.listed
    if row.owner_id is not None and not hidden:
        record_change_of(session, Change(row.owner_id, *_describe(row)))


def record_change_of(session: Session, change: Change) -> None:
    """The same in other words."""
    _notes(session)[change.row_id] = change


def recorded_changes(session: Session) -> Collection[Change]:
    """What was noted in this session, each row once."""
    return _notes(session).values()


@contextmanager
def savepoint(session: Session) -> Iterator[None]:
    """A part of the transaction that may fail alone: what was noted in it, by anybody, is forgotten with it."""
    before = {name: copy(noted) for name, noted in session.info.items()}
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
    wished_away = row.desired == Desired.DELETED and row.status != Status.DELETED
    return Kind.SANDBOX, row.id, Status.DELETING if wished_away else row.status


def _notes(session: Session) -> dict[str, Change]:
    notes: dict[str, Change] = session.info.setdefault(CHANGES, {})
    return notes
