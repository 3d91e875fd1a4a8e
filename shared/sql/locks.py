"""Row locks, and the order in which every transaction takes them.

    user → spec → sandbox → node → start task → conversation → dependent rows → change feed

A transaction that holds one of these locks never waits for one that precedes it, and rows of one table are locked in
the order of their ids (`in_order`). So there are no deadlocks. Users' rows precede the rows that all users share: a
transaction that holds nodes, which every placement needs, waits for no user's sandbox.

`skip_locked` never waits, and may be used in any order. A transaction holds the lock of a row that it has inserted, and
no other transaction sees that row before the commit. A foreign key locks its target FOR KEY SHARE, which conflicts only
with FOR UPDATE. So rows that others refer to are locked FOR NO KEY UPDATE (`key_share=True`), unless new references
must wait too.

A row is read again when it is locked (`shared.sql.statements`): another transaction may have changed it before that.

SQLite has one lock for everything, which every transaction takes first.
"""

from typing import Any

from sqlalchemy import ColumnElement, func
from sqlmodel import Session, col, select

from shared.errors import NotFound
from shared.models import User
from shared.sql.statements import locked

# The namespaces: the first half of an advisory lock's key. The second half names the locked thing.
POOLS, INSTALLATION = 1, 2


def in_order(table: Any, where: ColumnElement[bool], *, skip_locked: bool = False) -> Any:
    """A SELECT of rows' ids that locks the rows in the order of their ids.

    Args:
        skip_locked: skip rows that another transaction has locked.
    """
    ids = select(table.id).where(where).order_by(col(table.id))
    return locked(ids, key_share=True, skip_locked=skip_locked)


def lock_user(session: Session, user_id: str) -> None:
    """Lock what the user has and what is counted for them, until the transaction ends: settings, secrets, quotas.

    Raises:
        NotFound: the user does not exist.
    """
    if session.exec(locked(select(User.id).where(User.id == user_id), key_share=True)).first() is None:
        raise NotFound("user", user_id)


def try_lock_pool(session: Session, spec_id: str) -> bool:
    """Try to lock a spec's warm pool until the end of the transaction, without waiting; return whether it succeeded."""
    if session.get_bind().dialect.name != "postgresql":
        return True
    return bool(session.execute(select(func.pg_try_advisory_xact_lock(POOLS, func.hashtext(spec_id)))).scalar_one())


def lock_installation(session: Session) -> None:
    """Lock the installation's row until the end of the transaction, even if the row does not exist yet."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(select(func.pg_advisory_xact_lock(INSTALLATION, 0)))
