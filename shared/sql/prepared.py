"""Statements that are made once and given their values when they are sent.

To make a statement of columns and conditions, and to have SQLAlchemy find out again what it means, takes the
interpreter several times as long as to send it and to read what comes back (docs/reports/bench.md). So what is on the
way of every wish is a constant of its module, or is remembered by what it is made of, and is compiled once; all else is
written where it is used.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import BindParameter, Dialect, Float, Numeric, bindparam
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.types import TypeEngine
from sqlmodel import Session

PREFIX = "given_"
# What SQLAlchemy writes where it leaves something for later.
POSTPONED = "[POSTCOMPILE_"

Rows = Sequence[Sequence[Any]]
Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class Prepared:
    """A statement as the driver of one kind of database takes it."""

    text: str
    # The values that it has itself.
    known: Mapping[str, Any]
    # How values are written for the driver, and read from it, that are not as they are.
    writers: Mapping[str, Convert]
    readers: Mapping[int, Convert]

    def write(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """All of its parameters, for the driver."""
        writers = self.writers
        given = {name: writers[name](value) if name in writers else value for name, value in values.items()}
        return {**self.known, **given}

    def read(self, rows: Rows) -> Rows:
        """What the driver has given, as Python has it."""
        if not self.readers:
            return rows
        return [self._read(list(row)) for row in rows]

    def _read(self, row: list[Any]) -> list[Any]:
        for place, convert in self.readers.items():
            row[place] = convert(row[place])
        return row


def send(session: Session, statement: Any, values: Mapping[str, Any]) -> Rows:
    """The rows that a kept statement returns, within the session's transaction, after what the session has to write.

    A row is its columns in order: no model is made of it. The session does not learn what was changed.
    """
    session.flush()
    connection = session.connection()
    prepared = prepare(statement, connection.dialect.name)
    found = connection.exec_driver_sql(prepared.text, prepared.write(values))
    return prepared.read(found.all()) if found.returns_rows else ()


@lru_cache(maxsize=1024)
def prepare(statement: Any, dialect_name: str) -> Prepared:
    """Compile a statement that is kept, or find what was compiled before.

    Raises:
        ValueError: it has a list of values that is not `several`: SQLAlchemy would write that anew each time.
    """
    dialect = DIALECTS[dialect_name]
    compiled = statement.compile(dialect=dialect)
    if POSTPONED in str(compiled):
        raise ValueError(f"a list in a kept statement must be `several`: {compiled}")
    bound = compiled.binds.items()
    writers = {name: item.type.dialect_impl(dialect).bind_processor(dialect) for name, item in bound}
    return Prepared(
        text=str(compiled),
        known={name: item.effective_value for name, item in bound if not item.required},
        writers={name: writer for name, writer in writers.items() if writer},
        readers=_readers(statement, dialect),
    )


def given(name: str, type_: TypeEngine[Any] | None = None) -> BindParameter[Any]:
    """A value that comes with each execution, by `give`; of its column's type where it meets one."""
    return bindparam(PREFIX + name, type_=type_)


def give(**values: Any) -> dict[str, Any]:
    """The values of one execution, by the names that `given` was told."""
    return {PREFIX + name: value for name, value in values.items()}


def several(name: str, number: int) -> list[BindParameter[Any]]:
    """The same for so many values, by `give_several`."""
    return [given(f"{name}_{place}") for place in range(number)]


def give_several(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """The values of one execution, as many as `rounded` says: the last ones are there again."""
    return give(**{f"{name}_{place}": values[place % len(values)] for place in range(rounded(len(values)))})


def rounded(number: int) -> int:
    """Up to a power of two: there are few statements then, and the database keeps the plans of all of them."""
    return int(1 << (number - 1).bit_length())


def make_row(model: type[Any], columns: Sequence[Any]) -> Any:
    """The model of a row that has all of its table's columns in order; it belongs to no session."""
    return model(**dict(zip(model.__table__.columns.keys(), columns, strict=True)))


def all_columns(model: type[Any]) -> list[Any]:
    """What `make_row` needs."""
    return list(model.__table__.columns)


def _readers(statement: Any, dialect: Dialect) -> dict[int, Convert]:
    """Numbers are what the driver takes them for: how SQLAlchemy reads them depends on what the driver says of each."""
    returned = enumerate(getattr(statement, "exported_columns", ()))
    types = {place: column.type.dialect_impl(dialect) for place, column in returned}
    own = {place: type_ for place, type_ in types.items() if not isinstance(type_, (Float, Numeric))}
    converts = {place: type_.result_processor(dialect, None) for place, type_ in own.items()}
    return {place: convert for place, convert in converts.items() if convert}


# As `shared.db.database` opens them; the names of parameters are in the text.
DIALECTS: Mapping[str, Any] = {
    "postgresql": PGDialect_psycopg(),  # type: ignore[no-untyped-call]
    "sqlite": SQLiteDialect_pysqlite(paramstyle="named"),
}
