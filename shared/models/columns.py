"""Column types and constraints that behave alike on SQLite and PostgreSQL."""

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import CheckConstraint, DateTime, Dialect, Index, Text, text
from sqlalchemy.types import TypeDecorator
from sqlmodel import SQLModel

from shared.json_documents import storable, write_document

# Constraints get names, so that migrations can drop them.
SQLModel.metadata.naming_convention = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC. SQLite has no time zones: the zone is removed on writing and restored on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC for the database."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a naive time would be interpreted as local time")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to an aware time in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Json(TypeDecorator[Any]):
    """A JSON document stored as text: events may hold the escape of NUL, which PostgreSQL's JSON types reject."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        """Serialize the document as compact JSON."""
        return None if value is None else write_document(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)


class TextJson(Json):
    """A document of users' texts, whose readers need valid Unicode: responses, the engine, agent servers.

    Earlier versions stored halves of surrogate pairs, which have an escape in JSON, but no UTF-8.
    """

    cache_ok = True

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        """Parse the document, with each half of a pair replaced."""
        document = super().process_result_value(value, dialect)
        has_surrogate = value is not None and r"\ud" in value
        return json.loads(storable(json.dumps(document, ensure_ascii=False))) if has_surrogate else document


def one_of(column: str, values: type[StrEnum]) -> CheckConstraint:
    """A CHECK that a text column holds a value of the enum: a new value needs a migration, but no change of type."""
    literals = ", ".join(f"'{value}'" for value in values)
    return CheckConstraint(f"{column} IN ({literals})", name=column)


def partial_index(name: str, *columns: str, where: str) -> Index:
    """An index of the rows that fulfil a condition."""
    return Index(name, *columns, sqlite_where=text(where), postgresql_where=text(where))
