"""Lists of values that one statement can bind: by default SQLite takes 32,766, PostgreSQL 65,535."""

from collections.abc import Collection, Iterator

MAX_VALUES = 10_000


def split(values: Collection[str]) -> Iterator[list[str]]:
    """Yield all values in order, in lists of at most `MAX_VALUES`."""
    ordered = sorted(values)
    for begin in range(0, len(ordered), MAX_VALUES):
        yield ordered[begin : begin + MAX_VALUES]
