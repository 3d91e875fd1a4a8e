"""The change feed as clients follow it, and its retention. `shared.changes.recorder` appends to it.

Each user has a sequence of numbers without gaps. So a client that has read up to a number has missed no earlier entry,
and a removed entry shows as a gap.
"""

from collections.abc import Collection, Sequence
from datetime import timedelta

from sqlalchemy import case, delete, tuple_, update
from sqlmodel import Session, col, select

from shared.clock import now
from shared.models import ChangeEntry, ChangeFeed, User
from shared.sql.due_checks import when_passed
from shared.sql.statements import locked

RETENTION = timedelta(hours=24)
EXPIRED = when_passed(col(ChangeEntry.at), delay=RETENTION)
# More entries than a feed gets between a backup and its restore.
SKIPPED = 10**9


def read(session: Session, owner_id: str, after: int, *, limit: int = 500) -> Sequence[ChangeEntry] | None:
    """The entries that follow a number, oldest first.

    Returns:
        None if some of them were removed, or if the number is not from this feed.
    """
    # Before the entries are read: a concurrent append must not appear as a gap.
    if last(session, [owner_id]).get(owner_id, 0) == after:
        return ()
    following = select(ChangeEntry).where(ChangeEntry.owner_id == owner_id, ChangeEntry.number > after)
    found = session.exec(following.order_by(col(ChangeEntry.number)).limit(limit)).all()
    unbroken = [entry.number for entry in found] == list(range(after + 1, after + 1 + len(found)))
    return found if found and unbroken else None


def last(session: Session, owner_ids: Collection[str]) -> dict[str, int]:
    """The number of the newest entry in each of these users' feeds that has one."""
    statement = select(ChangeFeed.owner_id, ChangeFeed.last).where(col(ChangeFeed.owner_id).in_(owner_ids))
    return dict(session.exec(statement).all())


def skip_numbers(session: Session) -> None:
    """Skip numbers in a restored database, so that none is assigned a second time.

    A client may have read entries that are newer than the backup. To this client, the skipped numbers are a gap. The
    next number depends on the time, in milliseconds: a backup may be restored several times, and each time other
    entries follow.
    """
    without = ~select(ChangeFeed.owner_id).where(ChangeFeed.owner_id == User.id).exists()
    session.add_all(ChangeFeed(owner_id=user_id, last=0) for user_id in session.exec(select(User.id).where(without)))
    session.flush()
    skipped, present = col(ChangeFeed.last) + SKIPPED, round(now().timestamp() * 1000)
    session.execute(update(ChangeFeed).values(last=case((skipped < present, present), else_=skipped)))


def delete_expired(session: Session, *, limit: int = 1000) -> None:
    key = tuple_(col(ChangeEntry.owner_id), col(ChangeEntry.number))
    # Workers sweep concurrently: each skips the rows that another worker has locked.
    expired = col(ChangeEntry.at) <= now() - RETENTION
    found = select(ChangeEntry.owner_id, ChangeEntry.number).where(expired).limit(limit)
    keys = session.exec(locked(found, skip_locked=True)).all()
    session.execute(delete(ChangeEntry).where(key.in_([tuple(one) for one in keys])))
