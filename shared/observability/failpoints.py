"""A hook for tests: a process reports the operations that it begins, and the points before and after external writes.

An operation is the executing job, periodic task or route. A write is named `<kind>.<verb>`, such as `database.commit`.
"""

from collections.abc import Callable
from contextlib import ContextDecorator
from typing import Literal

Event = Literal["begin", "before", "after"]

# Set by tests, and called with the name of the operation or write. It may block, or kill the process.
observer: Callable[[Event, str], None] | None = None


def begin(operation: str) -> None:
    """Report that an operation begins in this thread or asyncio task."""
    if observer is not None:
        observer("begin", operation)


def before(write: str) -> None:
    """Report the point before a write."""
    if observer is not None:
        observer("before", write)


def after(write: str) -> None:
    """Report the point after a write."""
    if observer is not None:
        observer("after", write)


class around(ContextDecorator):  # noqa: N801 - used like those of contextlib
    """Report the points before the block or function and, if it succeeds, after it."""

    def __init__(self, write: str) -> None:
        self._write = write

    def __enter__(self) -> None:
        """Report the point before."""
        before(self._write)

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Report the point after, unless the block failed."""
        if error is None:
            after(self._write)
