"""Lists as JSON text: the database writes each row as one JSON array, and a whole page is one value.

A page of fifty conversations has more than a thousand values. Fetching them one by one and converting them takes
longer than the rest of the request, but most rows have not changed since the last request. So a row's text is the
key of its cached response item (decision 24): it contains everything that the item depends on.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from typing import Any

from sqlalchemy import Boolean, ColumnElement, Float, Select, Text, bindparam, func, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from shared.db.database import Database
from shared.models.columns import Json, UtcDateTime
from shared.sql.pagination import Order, Page, decode_page_id, encode_page_id

# Separates rows. Their JSON text contains no line end: in a string, it is escaped.
LINE_END = "\n"


@dataclass(frozen=True, eq=False)
class TextList:
    """A list: its columns, its rows and its filters.

    Args:
        columns: the columns in a row's text, in order.
        model: the table of the rows; counts read only this table.
        shown_from: that table, joined with the other tables of the columns.
        always: conditions of every row.
        filters: conditions by name, each with at most one parameter, of that name.
        selective: filters that pass many or few rows depending on their values, so that the best plan depends on them.
    """

    columns: tuple[Any, ...]
    model: Any
    shown_from: Any
    always: tuple[Any, ...]
    filters: Mapping[str, ColumnElement[bool]]
    selective: frozenset[str] = frozenset()

    def page(
        self, database: Database, values: Mapping[str, Any], order: Order, page_id: str | None, limit: int
    ) -> Page[str]:
        """A page of rows that pass the filters whose values are not None.

        Raises:
            Invalid: the page id is not from this list.
        """
        used = _without_none(values)
        after: dict[str, Any] = {}
        if page_id is not None:
            after["last_value"], after["last_tie"] = decode_page_id(page_id, order)
        statement = self._page(frozenset(used), order, paged=bool(after))
        [[text]] = database.fetch(
            statement, used | after | {"max_rows": limit + 1}, custom_plan=self._is_selective(used)
        )
        rows = text.split(LINE_END) if text else []
        more = len(rows) > limit
        return Page(rows[:limit], self._next(rows[limit - 1], order) if more else None)

    def count(self, database: Database, values: Mapping[str, Any]) -> int:
        """The number of rows that pass the filters."""
        used = _without_none(values)
        [[number]] = database.fetch(self._count(frozenset(used)), used, custom_plan=self._is_selective(used))
        return int(number)

    def read(self, text: str) -> list[Any]:
        """A row's values in the order of the columns."""
        return [read(value) for read, value in zip(self._readers, json.loads(text), strict=True)]

    @cached_property
    def _readers(self) -> list[Callable[[Any], Any]]:
        return [_reader(column.type) for column in self.columns]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {column.key: place for place, column in enumerate(self.columns)}

    @cache  # noqa: B019 - lists live as long as the process
    def _page(self, names: frozenset[str], order: Order, *, paged: bool) -> Select[Any]:
        line = _row_text(*self.columns).label("line")
        statement = self._filtered(select(line).select_from(self.shown_from), names)
        if paged:
            last = {"last_value": order.column.type, "last_tie": order.tie.type}
            statement = statement.where(order.beyond(*(bindparam(name, type_=kind) for name, kind in last.items())))
        rows = statement.order_by(*order.directed).limit(bindparam("max_rows")).subquery()
        return select(lines(rows.c.line))

    @cache  # noqa: B019
    def _count(self, names: frozenset[str]) -> Select[Any]:
        return self._filtered(select(func.count()).select_from(self.model), names)

    def _is_selective(self, used: Mapping[str, Any]) -> bool:
        return not self.selective.isdisjoint(used)

    def _filtered(self, statement: Select[Any], names: frozenset[str]) -> Select[Any]:
        return statement.where(*self.always, *(self.filters[name] for name in sorted(names & self.filters.keys())))

    def _next(self, text: str, order: Order) -> str:
        values = json.loads(text)
        places = (self._places[order.column.key], self._places[order.tie.key])
        return encode_page_id(order, *(self._readers[place](values[place]) for place in places))


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


class lines(FunctionElement[str]):  # noqa: N801 - a function of SQL, as the next one
    """The texts of rows, in order, joined by line ends; null without rows."""

    type = Text()
    inherit_cache = True


@compiles(lines, "postgresql")
def _join_postgresql(element: lines, compiler: Any, **options: Any) -> str:
    return f"string_agg({compiler.process(element.clauses, **options)}, chr(10))"


@compiles(lines, "sqlite")
def _join_sqlite(element: lines, compiler: Any, **options: Any) -> str:
    return f"group_concat({compiler.process(element.clauses, **options)}, char(10))"


class _row_text(FunctionElement[str]):  # noqa: N801
    """Columns as the text of one JSON array."""

    type = Text()
    inherit_cache = True


@compiles(_row_text, "postgresql")
def _write_postgresql(element: _row_text, compiler: Any, **options: Any) -> str:
    return f"CAST(json_build_array({compiler.process(element.clauses, **options)}) AS TEXT)"


@compiles(_row_text, "sqlite")
def _write_sqlite(element: _row_text, compiler: Any, **options: Any) -> str:
    written = [(compiler.process(column, **options), column.type) for column in element.clauses]
    # SQLite's JSON functions round numbers to 15 digits.
    exact = "CASE WHEN {0} IS NOT NULL THEN printf('%!.17g', {0}) END"
    columns = [exact.format(text) if isinstance(kind, Float) else text for text, kind in written]
    return f"json_array({', '.join(columns)})"


def _reader(kind: Any) -> Callable[[Any], Any]:
    for known, read in _READERS:
        if isinstance(kind, known):
            return lambda value: None if value is None else read(value)
    return lambda value: value


def _read_time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


_READERS: Sequence[tuple[type, Callable[[Any], Any]]] = (
    (UtcDateTime, _read_time),
    (Json, json.loads),
    (Boolean, bool),
    (Float, float),
)
