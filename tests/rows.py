"""Rows as stored in the database."""

from typing import Any, TypeVar

from sqlalchemy import inspect, text

from shared.db.database import Database
from shared.models import Conversation, Sandbox, StartTask

Row = TypeVar("Row", Conversation, Sandbox, StartTask)


def as_stored(database: Database, row: Row) -> Row:
    """The row, reread from the database."""
    return stored_row(database, type(row), row.id)


def stored_row(database: Database, table: type[Row], row_id: str) -> Row:
    """The row of that id."""
    with database.reading() as session:
        return session.get_one(table, row_id)


def all_rows(database: Database) -> dict[str, list[Any]]:
    """Every row of every table, by table name, to check that an operation writes nothing."""
    with database.reading() as session:
        names = inspect(session.connection()).get_table_names()
        return {name: sorted(session.connection().execute(text(f'SELECT * FROM "{name}"')), key=repr) for name in names}
