"""A PostgreSQL database that is cleared between tests. A new copy for each test takes five times as long."""

import psycopg
from psycopg import sql
from psycopg.rows import scalar_row

from tests.services.postgres import Postgres
from tests.waiting import eventually

# The database is not vacuumed, so deleted rows stay in its files.
MAX_TESTS = 500

TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY relname"
SEQUENCES = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'S'"
# A new table, column, index or trigger changes this digest, and so do the planner's statistics.
SCHEMA = """
    SELECT md5(string_agg(described, '' ORDER BY described)) FROM (
        SELECT pg_class::text FROM pg_class WHERE relnamespace = 'public'::regnamespace
        UNION ALL
        SELECT pg_trigger::text FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
        WHERE relnamespace = 'public'::regnamespace
    ) AS parts(described)
"""
DISCONNECT = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


class ClearedDatabase:
    """A copy of a migrated database. `clear` restores exactly its initial rows.

    It first ends the connections that a test left open. Its own connection stays open, because the statements take ten
    times as long on a new one. A database whose schema or statistics a test changed is replaced.
    """

    def __init__(self, server: Postgres, template: str) -> None:
        self._server = server
        self.name = server.create(template)
        self._connection = server.connect(self.name)
        self._clearing = _make_clearing(self._connection)
        self._schema = self._read_schema()
        self._tests = 0

    def clear(self) -> bool:
        """Clear the database for the next test; return False if it must be replaced."""
        self._tests += 1
        try:
            eventually(self._is_alone, interval_seconds=0.001)
            self._connection.execute(self._clearing)
            return self._tests < MAX_TESTS and self._read_schema() == self._schema
        except psycopg.OperationalError:
            return False  # tests of lost connections also end this one

    def drop(self) -> None:
        """Drop the database."""
        self._connection.close()
        self._server.drop(self.name)

    def _is_alone(self) -> bool:
        """End all other connections; return whether there were none."""
        return self._connection.execute(DISCONNECT).fetchone() == (0,)

    def _read_schema(self) -> tuple[object, ...] | None:
        return self._connection.execute(SCHEMA).fetchone()


def _make_clearing(connection: psycopg.Connection) -> sql.Composed:
    """A statement that restores the current rows, without triggers and foreign keys."""
    names = connection.cursor(row_factory=scalar_row)
    tables = [sql.Identifier(name) for name in names.execute(TABLES).fetchall()]
    sequences = [f'public."{name}"' for name in names.execute(SEQUENCES).fetchall()]
    steps = [
        sql.SQL("SET LOCAL session_replication_role = replica;"),
        *(sql.SQL("DELETE FROM {};").format(table) for table in tables),
        *(_make_insert(connection, table) for table in tables),
        *(sql.SQL("PERFORM setval({}, 1, false);").format(sequence) for sequence in sequences),
    ]
    return sql.SQL("DO {}").format(sql.SQL("BEGIN {} END").format(sql.Composed(steps)).as_string(connection))


def _make_insert(connection: psycopg.Connection, table: sql.Identifier) -> sql.Composed:
    found = connection.execute(sql.SQL("SELECT json_agg(t)::text FROM {} AS t").format(table)).fetchone()
    if found in (None, (None,)):
        return sql.Composed([])
    statement = "INSERT INTO {table} SELECT * FROM json_populate_recordset(NULL::{table}, {rows});"
    return sql.SQL(statement).format(table=table, rows=found[0])
