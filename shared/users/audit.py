"""The audit log of operators' actions. Each entry is written in the transaction of its action."""

from datetime import timedelta
from typing import NamedTuple

from sqlmodel import Session, col, select

from shared.clock import now
from shared.models import AuditEntry
from shared.sql.pagination import Order, Page, read_page
from shared.sql.statements import delete_unlocked

RETENTION = timedelta(days=400)
# The maximum number of expired entries that one new entry removes.
REMOVED = 100
NEWEST_FIRST = Order(col(AuditEntry.at), col(AuditEntry.id), descending=True)


class Actor(NamedTuple):
    """Who acts: a user's name, and the prefix of the key that the user signed in with."""

    name: str
    key_prefix: str


def record(session: Session, actor: Actor | None, action: str, subject: str) -> None:
    """Record an action, and remove some expired entries.

    Args:
        actor: who acts; None: the command line.
        subject: a sandbox's id, or the name of a node or of a user.
    """
    name, key_prefix = actor or (None, None)
    session.add(AuditEntry(actor=name, key_prefix=key_prefix, action=action, subject=subject))
    old = select(AuditEntry.id).where(col(AuditEntry.at) < now() - RETENTION).limit(REMOVED)
    delete_unlocked(session, AuditEntry, old)


def search(session: Session, page_id: str | None, limit: int) -> Page[AuditEntry]:
    """A page of all entries, newest first.

    Raises:
        Invalid: the page id is not from this list.
    """
    return read_page(session, select(AuditEntry), NEWEST_FIRST, page_id, limit)
