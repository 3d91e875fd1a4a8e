"""The guarded update: one UPDATE that writes a row only if the row is still as its writer knows it (law 3).

The writer names what must not have changed: a fencing token, a generation, a state. The same round trip checks that
and writes. Its result is the written row, or nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, Update, and_, update
from sqlmodel import Session

from shared.sql.prepared import bind, bind_values, send


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


def _equals(column: Any, value: Any) -> ColumnElement[bool]:
    found: ColumnElement[bool] = column.is_not_distinct_from(value) if column.nullable else column == value
    return found


@lru_cache(maxsize=256)
def _writing(table: Any, expected: tuple[str, ...], names: tuple[str, ...], returning: tuple[str, ...]) -> Any:
    guard = unchanged(table, **{name: bind(f"still_{name}") for name in expected})
    columns = (getattr(table, name) for name in returning)
    return guarded_update(table, guard, {name: bind(name) for name in names}, columns)
