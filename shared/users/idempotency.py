"""Kept answers: found under the user's lock, written in the transaction of the wish they answer."""

from datetime import timedelta

from sqlalchemy import ColumnElement, delete
from sqlmodel import Session, col, select

from shared.clock import now
from shared.models import IdempotencyKey
from shared.users import settings_store

KEPT_FOR = timedelta(hours=24)


def find(session: Session, owner_id: str, operation: str, key: str) -> IdempotencyKey | None:
    """What was answered under that key, if it is kept still.

    Until the transaction ends, nobody else is told anything about a key of this user: of two requests that come at
    once, the second one finds the answer of the first.
    """
    settings_store.lock(session, owner_id)
    asked = (IdempotencyKey.owner_id == owner_id, IdempotencyKey.operation == operation, IdempotencyKey.key == key)
    row = session.exec(select(IdempotencyKey).where(*asked)).first()
    if row is None or row.expires_at > now():
        return row
    session.expunge(row)
    session.execute(delete(IdempotencyKey).where(col(IdempotencyKey.id) == row.id))
    return None


def keep(session: Session, row: IdempotencyKey) -> None:
    """Keep an answer, in the transaction that `find` has found none in."""
    session.add(row)
    session.flush()


def has_expired(session: Session) -> bool:
    """Whether there is something to forget."""
    return session.exec(select(IdempotencyKey.id).where(_expired()).limit(1)).first() is not None


def forget_expired(session: Session, *, limit: int = 1000) -> None:
    """Remove answers that nobody can ask for any more."""
    # Several workers sweep: each leaves alone what another one has in hand.
    found = select(IdempotencyKey.id).where(_expired()).limit(limit).with_for_update(skip_locked=True)
    session.execute(delete(IdempotencyKey).where(col(IdempotencyKey.id).in_(session.exec(found).all())))


def _expired() -> ColumnElement[bool]:
    return col(IdempotencyKey.expires_at) <= now()
