"""Checks whether work is due. One statement has all checks of a sweep: if nothing is due, the sweep sends no other.

The statement has no parameters, and each check reads one end of an index. With a comparison such as `at <= :now`,
PostgreSQL would cache a plan for any time, which may read the whole table.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import func, select

from shared.clock import now
from shared.sql.statements import Fetch

Kind = TypeVar("Kind")


@dataclass(frozen=True, eq=False)
class DueCheck:
    """A query for one value, and whether work is due when it returns that value. None is due when it returns NULL."""

    query: Any
    is_due: Callable[[Any], bool]


def while_exists(column: Any, *where: Any) -> DueCheck:
    """Build the check for work that is due while a row fulfils the conditions, and the column is not empty."""
    return DueCheck(select(func.min(column)).where(*where), lambda _: True)


def when_passed(column: Any, *where: Any, delay: timedelta = timedelta(0)) -> DueCheck:
    """Build the check for work that is due `delay` after the earliest time in a column."""

    def is_due(earliest: datetime) -> bool:
        return earliest <= now() - delay

    return DueCheck(select(func.min(column)).where(*where), is_due)


def find_due(fetch: Fetch, work: Mapping[Kind, Iterable[DueCheck]]) -> list[Kind]:
    """Return the kinds of work of which any check finds some due, in their order."""
    checks = [(kind, check) for kind, of_kind in work.items() for check in of_kind]
    [values] = fetch(_reading(tuple(check for _, check in checks)), {})
    found = zip(checks, values, strict=True)
    return list(dict.fromkeys(kind for (kind, check), value in found if value is not None and check.is_due(value)))


@lru_cache
def _reading(checks: tuple[DueCheck, ...]) -> Any:
    return select(*(check.query.scalar_subquery() for check in checks))
