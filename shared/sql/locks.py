"""Locks on rows, and the one order in which every transaction takes them.

    user → spec → sandbox → node → start task → conversation → what belongs to these → change log

A transaction that holds one of these never waits for one that stands before it, and several rows of one table are
locked in the order of their ids (`in_order`). So no two transactions wait for each other. What is shown to users stands
in front of what all of them share: whoever holds nodes, which every placement needs, waits for nobody's sandbox.

`skip_locked` never waits, and may be used in any order. A row that a transaction has inserted itself is locked by it,
and nobody sees it before the commit. A foreign key locks the row that it names FOR KEY SHARE: that waits for FOR UPDATE
alone, so rows that others refer to are locked FOR NO KEY UPDATE (`key_share=True`), unless what refers to them has to
wait too.

SQLite has one lock for all, which every transaction takes first.
"""

from typing import Any

from sqlalchemy import ColumnElement, func
from sqlmodel import Session, col, select

# The first half of the key of an advisory lock; the second half is what it is about.
POOLS = 1


def in_order(table: Any, where: ColumnElement[bool], *, skip_locked: bool = False) -> Any:
    """A SELECT of the ids of rows that locks them, one after the other in the order of their ids.

    Args:
        skip_locked: leave out the rows that somebody else has locked.
    """
    found = select(table.id).where(where).order_by(col(table.id))
    return found.with_for_update(key_share=True, skip_locked=skip_locked)


def try_lock_pool(session: Session, spec_id: str) -> bool:
    """Whether this transaction alone tends the warm pool of that spec until it ends. It waits for nobody."""
    if session.get_bind().dialect.name != "postgresql":
        return True
    return bool(session.execute(select(func.pg_try_advisory_xact_lock(POOLS, func.hashtext(spec_id)))).scalar_one())
