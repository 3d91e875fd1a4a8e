"""Stored responses of idempotency keys: read under the user's lock, written in the transaction of their request."""

from datetime import timedelta
from itertools import accumulate

from sqlalchemy import delete
from sqlmodel import Session, col, select

from shared.clock import now
from shared.models import IdempotencyKey
from shared.sql import locks
from shared.sql.clock_steps import is_ahead
from shared.sql.due_checks import when_passed
from shared.sql.pagination import measure
from shared.sql.statements import delete_unlocked

RETENTION = timedelta(hours=24)
# The maximum number and total bytes of a user's stored responses: the newest are kept.
MAX_KEYS, MAX_BYTES = 1000, 16 * 1024 * 1024
EXPIRED = when_passed(col(IdempotencyKey.expires_at))


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
    """Store a response if `find` returned None in this transaction, and delete the owner's oldest above the limits."""
    session.add(row)
    session.flush()
    sizes = select(IdempotencyKey.id, measure(session, col(IdempotencyKey.answer)))
    others = sizes.where(IdempotencyKey.owner_id == row.owner_id, IdempotencyKey.id != row.id)
    created_at = col(IdempotencyKey.created_at)
    newest_first = others.order_by(is_ahead(created_at), created_at.desc(), col(IdempotencyKey.id).desc())
    rows = session.exec(newest_first.limit(2 * MAX_KEYS)).all()
    totals = accumulate(size for _, size in rows[: MAX_KEYS - 1])
    fitting = sum(total <= MAX_BYTES for total in totals)
    if oldest := [row_id for row_id, _ in rows[fitting:]]:
        delete_unlocked(session, IdempotencyKey, select(IdempotencyKey.id).where(col(IdempotencyKey.id).in_(oldest)))


def delete_expired(session: Session, *, limit: int = 1000) -> None:
    expired = col(IdempotencyKey.expires_at) <= now()
    delete_unlocked(session, IdempotencyKey, select(IdempotencyKey.id).where(expired).limit(limit))
