"""Prepared statements, compiled once and executed with bind parameters; guarded updates (law 3); locking reads.

Building a statement and compiling it in SQLAlchemy takes several times as long as sending it and reading the result
(docs/reports/bench.md). So the statements of the hot paths are module constants, or cached by what they are built
from. All other statements are written where they are used.

A guarded update writes a row only if the row is still as its writer knows it. The writer names what must not have
changed: a fencing token, a generation, a state. One round trip checks that and writes.

A locking read returns rows as they are once it holds their locks, even if the session has read them before.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import BindParameter, ColumnElement, Dialect, Float, Numeric, Update, and_, bindparam, delete, update
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.types import TypeEngine
from sqlmodel import Session, SQLModel

PREFIX = "given_"
# SQLAlchemy's placeholder for parts that it compiles at execution.
POSTPONED = "[POSTCOMPILE_"

Rows = Sequence[Sequence[Any]]
# Executes a prepared statement with its parameters, and returns its rows.
Fetch = Callable[[Any, Mapping[str, Any]], Rows]
Convert = Callable[[Any], Any]
Row = TypeVar("Row", bound=SQLModel)


@dataclass(frozen=True)
class Prepared:
    """A statement compiled for the driver of one kind of database."""

    text: str
    # The values of its literals.
    known: Mapping[str, Any]
    # Conversions of bind parameters and of result columns, where the driver needs them.
    writers: Mapping[str, Convert]
    readers: Mapping[int, Convert]

    def write(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """All parameters, converted for the driver."""
        writers = self.writers
        converted = {name: writers[name](value) if name in writers else value for name, value in values.items()}
        return {**self.known, **converted}

    def read(self, rows: Rows) -> Rows:
        """The driver's rows, converted to Python values."""
        if not self.readers:
            return rows
        return [self._read(list(row)) for row in rows]

    def _read(self, row: list[Any]) -> list[Any]:
        for place, convert in self.readers.items():
            row[place] = convert(row[place])
        return row


def send(session: Session, statement: Any, values: Mapping[str, Any]) -> Rows:
    """Execute a prepared statement in the session's transaction, after a flush, and return its rows.

    A row is a sequence of its columns, not a model. The session's objects do not change.
    """
    session.flush()
    connection = session.connection()
    prepared = prepare(statement, connection.dialect.name)
    result = connection.exec_driver_sql(prepared.text, prepared.write(values))
    return prepared.read(result.all()) if result.returns_rows else ()


def get_locked(session: Session, model: type[Row], key: Any, **how: Any) -> Row | None:
    """Lock the row with that primary key, and return it as it is then; None if there is none.

    `Session.get` locks it too, but returns what the session read before it waited for the lock.

    Args:
        how: options of `with_for_update`.
    """
    session.flush()
    return session.get(model, key, with_for_update=how or True, populate_existing=True)


def locked(found: Any, **how: Any) -> Any:
    """The SELECT, which locks its rows and refreshes those that the session has read before.

    Args:
        how: options of `with_for_update`.
    """
    return found.with_for_update(**how).execution_options(populate_existing=True)


def delete_unlocked(session: Session, model: Any, found: Any) -> None:
    """Delete the rows whose ids a query finds, except those that another transaction has locked.

    Several workers and requests delete old rows at the same time, and none waits for another.
    """
    if ids := session.exec(locked(found, skip_locked=True)).all():
        session.execute(delete(model).where(model.id.in_(ids)))


@lru_cache(maxsize=1024)
def prepare(statement: Any, dialect_name: str) -> Prepared:
    """Compile a statement, or return it from the cache.

    Raises:
        ValueError: it has a list of values that is not a `bind_list`: SQLAlchemy would compile it at each execution.
    """
    dialect = DIALECTS[dialect_name]
    compiled = statement.compile(dialect=dialect)
    if POSTPONED in str(compiled):
        raise ValueError(f"a list in a prepared statement must be a `bind_list`: {compiled}")
    bound = compiled.binds.items()
    writers = {name: item.type.dialect_impl(dialect).bind_processor(dialect) for name, item in bound}
    return Prepared(
        text=str(compiled),
        known={name: item.effective_value for name, item in bound if not item.required},
        writers={name: writer for name, writer in writers.items() if writer},
        readers=_readers(statement, dialect),
    )


def bind(name: str, type_: TypeEngine[Any] | None = None) -> BindParameter[Any]:
    """A parameter, set by `bind_values` at each execution. It takes the type of the column that it is compared with."""
    return bindparam(PREFIX + name, type_=type_)


def bind_values(**values: Any) -> dict[str, Any]:
    """The bind parameters of one execution, by the names of `bind`."""
    return {PREFIX + name: value for name, value in values.items()}


def bind_list(name: str, number: int) -> list[BindParameter[Any]]:
    """A list of `number` bind parameters, set by `bind_list_values`."""
    return [bind(f"{name}_{place}") for place in range(number)]


def bind_list_values(name: str, values: Sequence[Any]) -> dict[str, Any]:
    """The values of one execution, repeated until their number is a power of two (`rounded`)."""
    return bind_values(**{f"{name}_{place}": values[place % len(values)] for place in range(rounded(len(values)))})


def rounded(number: int) -> int:
    """The next power of two: so there are few statements, and the database can cache all their plans."""
    return int(1 << (number - 1).bit_length())


def make_row(model: type[Any], columns: Sequence[Any]) -> Any:
    """A model from all columns of a row in order. It belongs to no session."""
    return model(**dict(zip(model.__table__.columns.keys(), columns, strict=True)))


def all_columns(model: type[Any]) -> list[Any]:
    """All columns of a model, as `make_row` needs them."""
    return list(model.__table__.columns)


# --- guarded updates -------------------------------------------------------------------------------------------------


def unchanged(table: Any, **expected: Any) -> ColumnElement[bool]:
    """Build the condition that these columns have these values; bind parameters are values too."""
    return and_(*(_equals(getattr(table, name), value) for name, value in expected.items()))


def guarded_update(
    table: Any, guard: ColumnElement[bool], values: Mapping[str, Any], returning: Iterable[Any] = ()
) -> Any:
    """Build the UPDATE that writes values, which may be SQL expressions, where the guard holds.

    Args:
        returning: the columns of the result; none for `count_written`.
    """
    statement, columns = update(table).where(guard).values(**values), tuple(returning)
    return statement.returning(*columns) if columns else statement


def write_unchanged(
    session: Session,
    table: Any,
    expected: Mapping[str, Any],
    values: Mapping[str, Any],
    returning: Sequence[str] = ("id",),
) -> Sequence[Any] | None:
    """Write values to the row whose columns have the expected values.

    The statement is prepared: cached by the names of the columns.

    Returns:
        The columns named in `returning`; None if no row has the expected values.
    """
    statement = _writing(table, tuple(expected), tuple(values), tuple(returning))
    parameters = bind_values(**values, **{f"still_{name}": value for name, value in expected.items()})
    rows = send(session, statement, parameters)
    return rows[0] if rows else None


def count_written(session: Session, statement: Update) -> int:
    """Execute an UPDATE, and return the number of written rows. The session's objects do not change."""
    result: Any = session.execute(statement.execution_options(synchronize_session=False))
    return int(result.rowcount)


def _readers(statement: Any, dialect: Dialect) -> dict[int, Convert]:
    """Conversions by column. Numbers stay as the driver returns them: SQLAlchemy's conversions depend on the cursor."""
    returned = enumerate(getattr(statement, "exported_columns", ()))
    types = {place: column.type.dialect_impl(dialect) for place, column in returned}
    own = {place: type_ for place, type_ in types.items() if not isinstance(type_, (Float, Numeric))}
    converts = {place: type_.result_processor(dialect, None) for place, type_ in own.items()}
    return {place: convert for place, convert in converts.items() if convert}


def _equals(column: Any, value: Any) -> ColumnElement[bool]:
    found: ColumnElement[bool] = column.is_not_distinct_from(value) if column.nullable else column == value
    return found


@lru_cache(maxsize=256)
def _writing(table: Any, expected: tuple[str, ...], names: tuple[str, ...], returning: tuple[str, ...]) -> Any:
    guard = unchanged(table, **{name: bind(f"still_{name}") for name in expected})
    columns = (getattr(table, name) for name in returning)
    return guarded_update(table, guard, {name: bind(name) for name in names}, columns)


# The dialects of `shared.db.database`. Parameters are named in the text.
DIALECTS: Mapping[str, Any] = {
    "postgresql": PGDialect_psycopg(),  # type: ignore[no-untyped-call]
    "sqlite": SQLiteDialect_pysqlite(paramstyle="named"),
}
