"""Query plans of a database."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, event

from shared.db.database import Database

# The statements to explain: queries and claims.
ASKED = ("SELECT", "WITH")


@contextmanager
def plans_of_sessions(database: Database) -> Iterator[list[str]]:
    """Collect the plans of the statements that sessions and `fetch` send within a block."""
    plans: list[str] = []
    explain = "EXPLAIN" if database.engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"

    def note(connection: Connection, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if not statement.startswith(ASKED):
            return
        cursor = connection.connection.cursor()
        cursor.execute(f"{explain} {statement}", parameters)
        plans.append("\n".join(str(row[-1]) for row in cursor.fetchall()))

    event.listen(database.engine, "before_cursor_execute", note)
    try:
        yield plans
    finally:
        event.remove(database.engine, "before_cursor_execute", note)
