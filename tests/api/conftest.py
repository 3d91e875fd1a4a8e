"""What tests of routes share."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from shared.database import Database


@pytest.fixture
def count_queries(database: Database) -> Callable[[], AbstractContextManager[list[str]]]:
    """Collects the queries that are sent to the store within a block."""

    @contextmanager
    def counting() -> Iterator[list[str]]:
        statements: list[str] = []

        def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
            if statement.startswith("SELECT"):
                statements.append(statement)

        event.listen(database.engine, "before_cursor_execute", note)
        try:
            yield statements
        finally:
            event.remove(database.engine, "before_cursor_execute", note)

    return counting
