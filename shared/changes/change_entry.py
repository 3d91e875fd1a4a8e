"""A change and its place in its owner's log, in one message to PostgreSQL: the change log as parts of a statement.

The lock on the owner's log is the last one that such a statement takes, as it must be.
"""

from typing import Any

from sqlalchemy import CTE, ColumnElement, Insert, Select, Table, insert, literal, select
from sqlalchemy.dialects import postgresql

from shared.changes.recorder import Kind
from shared.models import ChangeEntry, ChangeFeed


def table_of(model: Any) -> Table:
    """The table that a model's rows are in."""
    found: Table = model.__table__
    return found


def with_entry(found: Select[Any], changed: CTE, status: ColumnElement[Any], at: ColumnElement[Any]) -> Select[Any]:
    """The same, and the entry of a sandbox in its owner's log.

    Args:
        changed: the sandbox as it is written by this statement.
        status: what its owner is told of it.
        at: the time of it.
    """
    return found.add_cte(_enter(changed, _number(changed), status, at).cte("entered"))


def _number(changed: CTE) -> CTE:
    first = postgresql.insert(LOG).from_select([LOG.c.owner_id, LOG.c.last], select(changed.c.owner_id, literal(1)))
    counted = first.on_conflict_do_update(index_elements=[LOG.c.owner_id], set_={"last": LOG.c.last + 1})
    return counted.returning(LOG.c.owner_id, LOG.c.last).cte("numbered")


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


LOG, ENTRY = table_of(ChangeFeed), table_of(ChangeEntry)
