"""Stored responses of idempotency keys: read under the user's lock, written in the transaction of their request."""

from datetime import timedelta

from sqlalchemy import ColumnElement, delete
from sqlmodel import Session, col, select

from shared.clock import now
from shared.models import IdempotencyKey
from shared.sql import locks
from shared.sql.statements import locked

RETENTION = timedelta(hours=24)


def find(session: Session, owner_id: str, operation: str, key: str) -> IdempotencyKey | None:
    """The stored response of that key, or None.

    Other requests with a key of this user wait until the transaction ends: of two concurrent requests, the second one
    finds the response of the first.
    """
    locks.lock_user(session, owner_id)
    matches = (IdempotencyKey.owner_id == owner_id, IdempotencyKey.operation == operation, IdempotencyKey.key == key)
    row = session.exec(select(IdempotencyKey).where(*matches)).first()
    if row is None or row.expires_at > now():
        return row
    session.expunge(row)
    session.execute(delete(IdempotencyKey).where(col(IdempotencyKey.id) == row.id))
    return None


def keep(session: Session, row: IdempotencyKey) -> None:
    """Store a response in the transaction in which `find` returned None."""
    session.add(row)
    session.flush()


def has_expired(session: Session) -> bool:
    """Whether an expired response is stored."""
    return session.exec(select(IdempotencyKey.id).where(_expired()).limit(1)).first() is not None


def delete_expired(session: Session, *, limit: int = 1000) -> None:
    """Delete expired responses."""
    # Workers sweep concurrently: each skips the rows that another one has locked.
    found = locked(select(IdempotencyKey.id).where(_expired()).limit(limit), skip_locked=True)
    session.execute(delete(IdempotencyKey).where(col(IdempotencyKey.id).in_(session.exec(found).all())))


def _expired() -> ColumnElement[bool]:
    return col(IdempotencyKey.expires_at) <= now()
