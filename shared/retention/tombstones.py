"""Tombstones: the rows of deleted sandboxes, with their deleted conversations, and their retention (law 12).

A tombstone explains late containers and webhooks. None can be expected after `RETENTION`. A tombstone that other rows
still refer to, such as a conversation that its owner has kept, is written again and so stays for another `RETENTION`.
So does one whose container or volume an engine does not remove.
"""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, delete, text, update
from sqlmodel import Session, col, select

from shared.clock import now
from shared.models import Conversation, Event, Sandbox, SandboxLog, StaleContainer, StartTask
from shared.models.sandboxes import IS_TOMBSTONE
from shared.sandboxes import status as sandbox_status
from shared.sql import locks
from shared.sql.due_checks import when_passed
from shared.sql.statements import delete_unlocked, locked

RETENTION = timedelta(days=30)
EXPIRED = when_passed(col(Sandbox.updated_at), text(IS_TOMBSTONE), delay=RETENTION)
# The limits of one transaction: a sandbox has at most about a thousand conversations and as many transitions.
MAX_SANDBOXES = 10
MAX_CONVERSATIONS = 200
# The number of deleted conversations of an existing sandbox that are kept for longer than `RETENTION`: the newest ones.
MAX_KEPT = 500


def delete_expired(session: Session, *, limit: int = MAX_SANDBOXES) -> None:
    """Delete tombstones whose retention has ended, or prolong it. Several workers do this at the same time."""
    expired = text(IS_TOMBSTONE), col(Sandbox.updated_at) <= now() - RETENTION
    oldest = select(Sandbox.id).where(*expired).order_by(col(Sandbox.updated_at)).limit(limit)
    ids = session.exec(locked(oldest, skip_locked=True)).all()
    if _delete_conversations(session, ids) == MAX_CONVERSATIONS:
        return  # the next sweep continues
    needed = _find_needed(session, ids)
    _prolong(session, needed)
    _delete_sandboxes(session, set(ids) - needed)


def keep(session: Session, sandbox_ids: Collection[str]) -> None:
    """Prolong those of these tombstones whose retention is half over: an engine still has something of the sandbox."""
    is_old = text(IS_TOMBSTONE), col(Sandbox.updated_at) <= now() - RETENTION / 2
    old = locks.in_order(Sandbox, and_(col(Sandbox.id).in_(sandbox_ids), *is_old), skip_locked=True)
    _prolong(session, session.execute(old).scalars().all())


def restart_retention(session: Session, began: datetime, *, limit: int) -> int:
    """Prolong the oldest tombstones that were written before `began`, and return their number; 0: none is left.

    After a restore, engines may have containers of sandboxes that were already deleted at the time of the backup.
    """
    outdated = text(IS_TOMBSTONE), col(Sandbox.updated_at) < began
    ids = session.exec(select(Sandbox.id).where(*outdated).order_by(col(Sandbox.updated_at)).limit(limit)).all()
    _prolong(session, ids)
    return len(ids)


def limit_conversations(session: Session, sandbox_id: str) -> None:
    """Delete the oldest deleted conversations of an existing sandbox, beyond `MAX_KEPT` and after their retention.

    Its agent server may still know some of them, because it refused to delete them, or has files from a backup.
    """
    newest_first = _ended(Conversation.sandbox_id == sandbox_id).order_by(
        col(Conversation.created_at).desc(), col(Conversation.id).desc()
    )
    if old := session.exec(newest_first.offset(MAX_KEPT).limit(MAX_CONVERSATIONS)).all():
        delete_unlocked(session, Conversation, _ended(col(Conversation.id).in_(old)))


def _prolong(session: Session, sandbox_ids: Collection[str]) -> None:
    prolonged = update(Sandbox).where(col(Sandbox.id).in_(sandbox_ids)).values(updated_at=now())
    session.execute(prolonged.execution_options(synchronize_session=False))


def _delete_conversations(session: Session, sandbox_ids: Sequence[str]) -> int:
    """Delete deleted conversations whose retention has ended, and return their number."""
    found = _ended(col(Conversation.sandbox_id).in_(sandbox_ids)).limit(MAX_CONVERSATIONS)
    ids = session.exec(locked(found, skip_locked=True)).all()
    session.execute(_deletion(Conversation, Conversation.id, ids))
    return len(ids)


def _ended(where: Any) -> Any:
    """Those of the conversations that were deleted, with all their events, and whose retention has ended."""
    events = select(Event.seq).where(Event.conversation_id == Conversation.id)
    ended = (col(Conversation.deleted_at) <= now() - RETENTION, ~col(Conversation.awaits_sandbox), ~events.exists())
    return select(Conversation.id).where(where, *ended)


def _find_needed(session: Session, sandbox_ids: Sequence[str]) -> set[str]:
    """The ids of those sandboxes that a conversation, a start, a kept log or a container of a lost node still needs."""
    referring = (Conversation.sandbox_id, StartTask.sandbox_id, StaleContainer.sandbox_id)
    queries = [select(column).where(col(column).in_(sandbox_ids)).distinct() for column in referring]
    # Logs have a retention of their own, which an operator may have set to more than this one.
    logged = col(SandboxLog.sandbox_id).in_(sandbox_ids), col(SandboxLog.expires_at) > now()
    queries.append(select(SandboxLog.sandbox_id).where(*logged))
    return {str(sandbox_id) for query in queries for sandbox_id in session.exec(query).all()}


def _delete_sandboxes(session: Session, sandbox_ids: Collection[str]) -> None:
    sandbox_status.delete_history(session, sandbox_ids)
    session.execute(_deletion(SandboxLog, SandboxLog.sandbox_id, sandbox_ids))
    session.execute(_deletion(Sandbox, Sandbox.id, sandbox_ids))


def _deletion(table: Any, column: Any, ids: Collection[str]) -> Any:
    return delete(table).where(col(column).in_(ids)).execution_options(synchronize_session=False)
