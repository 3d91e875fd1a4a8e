"""A kept connection is like a new one, and belongs to one database of one server."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from shared.db.database import Database
from tests.services.postgres import Postgres
from tests.services.stores import PostgresStores
from tests.services.test_cleared_database import stores as stores  # noqa: PLC0414 - a fixture

LEAVINGS = (
    "SET work_mem = '65kB'",
    "CREATE TEMP TABLE left_behind (id int)",
    "SELECT pg_advisory_lock(7)",
    "LISTEN left_behind",
    "PREPARE left_behind AS SELECT 1",
)
FOUND = """
    SELECT current_setting('work_mem') = '65kB', to_regclass('pg_temp.left_behind') IS NOT NULL,
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
        (SELECT count(*) FROM pg_listening_channels()),
        (SELECT count(*) FROM pg_prepared_statements WHERE name = 'left_behind')
"""


@pytest.fixture
def url(stores: PostgresStores, tmp_path: Path) -> Iterator[str]:
    with stores.cleared(tmp_path) as url:
        yield url


def execute(url: str, *statements: str) -> tuple[int, Any]:
    """Execute statements on a new connection; return its pid and the last row."""
    with closing(Database(url)) as database, database.engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        pid = connection.execute(text("SELECT pg_backend_pid()")).scalar_one()
        return pid, [connection.execute(text(one)) for one in statements][-1].first() if statements else None


def test_closed_connection_is_continued_in_the_state_of_a_new_one(url: str) -> None:
    first, _ = execute(url, *LEAVINGS, "SELECT 1")
    again, found = execute(url, FOUND)
    assert (again, tuple(found)) == (first, (False, False, 0, 0, 0))


def test_product_sees_a_closed_connection(url: str) -> None:
    database = Database(url)
    with database.engine.connect() as connection:
        driver: Any = connection.connection.driver_connection
    database.close()
    assert driver.closed


def test_connection_that_the_server_ended_is_not_continued(url: str, postgres_server: Postgres) -> None:
    ended, _ = execute(url)
    with postgres_server.connect() as administrator:
        administrator.execute("SELECT pg_terminate_backend(%s)", [ended])
    assert execute(url)[0] != ended


def test_connection_with_an_open_transaction_is_not_kept(url: str) -> None:
    database = Database(url)
    raw = database.engine.raw_connection()
    raw.cursor().execute("SELECT pg_backend_pid()")
    driver: Any = raw.driver_connection
    pid = driver.info.backend_pid
    driver.close()
    raw.invalidate()
    database.close()
    assert execute(url)[0] != pid


def test_database_of_its_own_keeps_no_connection(stores: PostgresStores, tmp_path: Path) -> None:
    with stores.fresh(tmp_path) as url:
        assert execute(url)[0] != execute(url)[0]
