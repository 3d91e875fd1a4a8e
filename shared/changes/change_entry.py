"""The change feed's part of a combined PostgreSQL statement: a change and its entry in one message.

The lock on the owner's feed is the last one that such a statement takes, as the lock order requires.
"""

from typing import Any

from sqlalchemy import CTE, ColumnElement, Delete, Insert, Select, Table, delete, insert, literal, select
from sqlalchemy.dialects import postgresql

from shared.changes.recorder import MAX_STORED, REMOVED_EVERY, Kind
from shared.models import ChangeEntry, ChangeFeed


def table_of(model: Any) -> Table:
    found: Table = model.__table__
    return found


def with_entry(found: Select[Any], changed: CTE, status: ColumnElement[Any], at: ColumnElement[Any]) -> Select[Any]:
    """The statement with additional CTEs that append a sandbox's entry to its owner's feed, and remove old entries."""
    numbered = _number(changed)
    return found.add_cte(_enter(changed, numbered, status, at).cte("entered"), _remove_old(numbered).cte("removed"))


def _number(changed: CTE) -> CTE:
    first = postgresql.insert(FEED).from_select([FEED.c.owner_id, FEED.c.last], select(changed.c.owner_id, literal(1)))
    counted = first.on_conflict_do_update(index_elements=[FEED.c.owner_id], set_={"last": FEED.c.last + 1})
    return counted.returning(FEED.c.owner_id, FEED.c.last).cte("numbered")


def _enter(changed: CTE, numbered: CTE, status: ColumnElement[Any], at: ColumnElement[Any]) -> Insert:
    values = {
        ENTRY.c.owner_id: changed.c.owner_id,
        ENTRY.c.number: numbered.c.last,
        ENTRY.c.kind: literal(Kind.SANDBOX.value),
        ENTRY.c.row_id: changed.c.id,
        ENTRY.c.status: status,
        ENTRY.c.at: at,
    }
    found = select(*values.values()).where(numbered.c.owner_id == changed.c.owner_id)
    return insert(ENTRY).from_select(list(values), found)


def _remove_old(numbered: CTE) -> Delete:
    newest = numbered.c.last
    is_old = ENTRY.c.owner_id == numbered.c.owner_id, ENTRY.c.number <= newest - MAX_STORED
    return delete(ENTRY).where(newest % REMOVED_EVERY == 0, *is_old)


FEED, ENTRY = table_of(ChangeFeed), table_of(ChangeEntry)
