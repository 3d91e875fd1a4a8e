"""Rows for every table of an earlier schema, generated from the database's catalog instead of from models."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Boolean, Column, Connection, DateTime, Float, Integer, MetaData, String, Table, Text, inspect

ROWS = 3
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
# Alembic's table, and tables that triggers write.
NOT_FILLED = ("alembic_version", "list_version")

Rows = dict[str, list[dict[str, Any]]]


def reflect(connection: Connection) -> MetaData:
    found = MetaData()
    found.reflect(connection)
    return found


def fill(connection: Connection) -> None:
    """Insert `ROWS` rows into every table. Every other row leaves nullable columns empty."""
    for table in reflect(connection).sorted_tables:
        if table.name not in NOT_FILLED:
            allowed = _allowed_values(connection, table)
            for number in range(ROWS):
                connection.execute(table.insert(), _row(connection, table, allowed, number))


def read(connection: Connection) -> Rows:
    """Every row of every table that `fill` fills, in a fixed order."""
    tables = [table for table in reflect(connection).sorted_tables if table.name not in NOT_FILLED]
    return {
        table.name: [dict(row) for row in connection.execute(table.select().order_by(*table.primary_key)).mappings()]
        for table in tables
    }


def describe(connection: Connection) -> dict[str, list[str]]:
    """The columns, constraints and indexes of every table, in a comparable form."""
    found = inspect(connection)
    return {
        name: sorted(
            str(sorted((key, _describe(value)) for key, value in part.items()))
            for part in (
                *found.get_columns(name),
                *found.get_check_constraints(name),
                *found.get_foreign_keys(name),
                *found.get_unique_constraints(name),
                *found.get_indexes(name),
                found.get_pk_constraint(name),
            )
        )
        for name in found.get_table_names()
    }


def _describe(value: Any) -> str:
    """A comparable text of a default; the repr of an expression would contain its address."""
    return str({key: str(item) for key, item in value.items()} if isinstance(value, dict) else value)


def _row(connection: Connection, table: Table, allowed: dict[str, list[str]], number: int) -> dict[str, Any]:
    full = number % 2 == 0
    sqlite = connection.dialect.name == "sqlite"
    return {
        column.name: _value(column, allowed.get(column.name), number, sqlite=sqlite)
        if full or not column.nullable
        else None
        for column in table.columns
    }


def _value(column: Column[Any], allowed: list[str] | None, number: int, *, sqlite: bool) -> Any:
    for key in column.foreign_keys:
        return _value(key.column, None, number, sqlite=sqlite)
    if allowed:
        return allowed[number % len(allowed)]
    if isinstance(column.type, DateTime):
        at = FIRST + timedelta(hours=number)
        return at.replace(tzinfo=None) if sqlite else at
    values: dict[type, Any] = {  # a Text is a String, too
        Text: json.dumps({"number": number}),
        String: f"{number}-{column.name}"[: getattr(column.type, "length", None)],
        Boolean: number % 2 == 0,
        Integer: number + 1,
        Float: number + 0.5,
    }
    return next(value for kind, value in values.items() if isinstance(column.type, kind))


def _allowed_values(connection: Connection, table: Table) -> dict[str, list[str]]:
    """The texts that CHECKs allow, by column."""
    found: dict[str, list[str]] = {}
    for check in inspect(connection).get_check_constraints(table.name):
        values = re.findall(r"'([^']*)'", check["sqltext"])
        found |= {item.name: values for item in table.columns if re.search(rf"\b{item.name}\b", check["sqltext"])}
    return found
