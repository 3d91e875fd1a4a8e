"""Rows as the store has them now."""

from typing import TypeVar

from shared.database import Database
from shared.models import Conversation, Sandbox

Row = TypeVar("Row", Conversation, Sandbox)


def as_stored(database: Database, row: Row) -> Row:
    """The same row, read again."""
    with database.reading() as session:
        return session.get_one(type(row), row.id)
