"""Query plans of a database."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from unittest.mock import patch

from sqlalchemy import Connection, event

from shared.db.database import Database

# The statements to explain: queries and claims.
ASKED = ("SELECT", "WITH")


@contextmanager
def plans_of_sessions(database: Database) -> Iterator[list[str]]:
    """Collect the plans of the statements that sessions and `fetch` send within a block."""
    plans: list[str] = []
    explain = "EXPLAIN" if database.engine.dialect.name == "postgresql" else "EXPLAIN QUERY PLAN"
    send = database._fetch

    def note(connection: Any, statement: str, parameters: Any) -> None:
        if statement.startswith(ASKED):
            cursor = connection.cursor()
            cursor.execute(f"{explain} {statement}", parameters)
            plans.append("\n".join(str(row[-1]) for row in cursor.fetchall()))

    def note_sent(connection: Connection, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        note(connection.connection, statement, parameters)

    def fetch(statement: str, parameters: dict[str, Any], options: dict[str, Any]) -> Any:
        with closing(database._readers.raw_connection()) as connection:
            note(connection, statement, parameters)
        return send(statement, parameters, options)

    event.listen(database.engine, "before_cursor_execute", note_sent)
    try:
        with patch.object(database, "_fetch", fetch):
            yield plans
    finally:
        event.remove(database.engine, "before_cursor_execute", note_sent)
