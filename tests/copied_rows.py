"""Thousands of rows for tests of query plans. The database makes them: from Python they took many times as long."""

from typing import Any

from sqlalchemy import CTE, FromClause, Table, Text, cast, func, insert, literal, select, true
from sqlmodel import Session, SQLModel

# A text for each row that no other row has.
_RANDOM = {"sqlite": func.lower(func.hex(func.randomblob(16))), "postgresql": func.md5(cast(func.random(), Text))}


def copy_rows(session: Session, model: type[SQLModel], source: FromClause, **columns: Any) -> None:
    """Insert a copy of each row of a table for each row of `source`.

    Args:
        session: the transaction.
        model: the table, usually with one row.
        source: rows, such as `numbers`.
        columns: other values of the copies, or expressions with columns of `source`.
    """
    table: Table = model.__table__  # type: ignore[attr-defined]
    copied = {column.key: columns.get(column.key, column) for column in table.columns}
    if table.autoincrement_column is not None and table.autoincrement_column.key not in columns:
        del copied[table.autoincrement_column.key]
    rows = select(*copied.values()).select_from(table.join(source, true()))
    session.execute(insert(table).from_select(list(copied), rows))


def numbers(count: int) -> CTE:
    """A table whose column `number` has the numbers from 1."""
    first = select(literal(1).label("number")).cte("numbers", recursive=True)
    return first.union_all(select(first.c.number + 1).where(first.c.number < count))


def random_text(session: Session) -> Any:
    """An expression for ids and other texts of which each row has its own."""
    return _RANDOM[session.get_bind().dialect.name]
