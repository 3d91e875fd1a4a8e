"""The rows that keep containers' logs: few for each sandbox, and for limited time.

No lease guards the rows: each reading contains the time at which it began, and never replaces a newer one of the same
container. So a write can be repeated after the death of its worker, and a late write changes nothing. A reading from
before the database's clock was set back counts as older than all others.
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import func
from sqlmodel import Session, col, select

from shared.clock import now
from shared.models import SandboxLog
from shared.sql.clock_steps import is_ahead, latest
from shared.sql.due_checks import when_passed
from shared.sql.statements import delete_unlocked, locked

# How many containers' logs are kept for a sandbox, and for all sandboxes of a user: the newest ones.
MAX_CONTAINERS, MAX_OF_OWNER = 3, 300
# The maximum number of logs that a write removes. More than that exceed a limit only after it was lowered.
MAX_REMOVED = 10
NO_CONTAINER = ""
EXPIRED = when_passed(col(SandboxLog.expires_at))


class LogCause(StrEnum):
    """Why a container's log was kept."""

    # The container, or its agent server, did not start or does not respond.
    FAILED = "failed"
    # The container's processes have ended.
    EXITED = "exited"
    # Another container has replaced it.
    REPLACED = "replaced"
    REMOVED = "removed"


def keep(session: Session, log: SandboxLog) -> None:
    """Store a reading, unless a newer one of the container is stored; remove the oldest ones beyond the limits.

    Raises:
        StoreConflict: another worker has stored the container's first reading at the same time. A repeat succeeds.
    """
    same = (SandboxLog.sandbox_id == log.sandbox_id, SandboxLog.container_id == log.container_id)
    kept = session.exec(locked(select(SandboxLog).where(*same))).first()
    if kept is None:
        session.add(log)
        session.flush()
        _remove_beyond(session, MAX_CONTAINERS, SandboxLog.sandbox_id == log.sandbox_id)
        _remove_beyond(session, MAX_OF_OWNER, SandboxLog.owner_id == log.owner_id)
    elif kept.read_at <= log.read_at or kept.read_at > latest():
        # Equal values are not written again, such as the text of a container that prints nothing.
        kept.text, kept.is_cut, kept.read_at, kept.expires_at = log.text, log.is_cut, log.read_at, log.expires_at
        if kept.cause is None or log.cause != LogCause.EXITED:
            kept.cause = log.cause


def list_kept(session: Session, sandbox_id: str) -> Sequence[SandboxLog]:
    """The logs of a sandbox's containers, oldest first."""
    found = select(SandboxLog).where(SandboxLog.sandbox_id == sandbox_id, SandboxLog.container_id != NO_CONTAINER)
    return session.exec(found.order_by(*_newest_first()).limit(MAX_CONTAINERS)).all()[::-1]


def find_last_reading(session: Session, sandbox_id: str) -> datetime | None:
    """When a worker last read the log of a sandbox's container, or found that there is none; None: unknown."""
    readings = select(func.max(SandboxLog.read_at)).where(SandboxLog.sandbox_id == sandbox_id)
    return session.exec(readings.where(~is_ahead(col(SandboxLog.read_at)))).first()


def delete_expired(session: Session, *, limit: int = 100) -> None:
    expired = col(SandboxLog.expires_at) <= now()
    delete_unlocked(session, SandboxLog, select(SandboxLog.id).where(expired).limit(limit))


def _remove_beyond(session: Session, kept: int, of_one: Any) -> None:
    """Remove the oldest logs of a sandbox or of an owner."""
    rows = select(SandboxLog.id).where(of_one, SandboxLog.container_id != NO_CONTAINER)
    delete_unlocked(session, SandboxLog, rows.order_by(*_newest_first()).offset(kept).limit(MAX_REMOVED))


def _newest_first() -> tuple[Any, ...]:
    read_at = col(SandboxLog.read_at)
    return is_ahead(read_at), read_at.desc(), col(SandboxLog.id).desc()
