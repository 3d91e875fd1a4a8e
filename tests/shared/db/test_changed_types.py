"""Processes that run while a migration changes the type of a column that they have read before."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import OperationalError
from sqlmodel import col

from shared.db.database import Database
from shared.db.migrations import opened
from shared.models import AuditEntry

pytestmark = [
    pytest.mark.own_database,
    pytest.mark.parametrize("database_url", ["postgresql"], indirect=True),
]
READ = select(col(AuditEntry.id))
# More than psycopg executes before it prepares a statement.
USES = 10


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    """A database with one connection for sessions, and one for `fetch`."""
    with closing(Database(database_url, pool_size=1)) as database:
        yield database


def read(database: Database) -> None:
    with database.reading() as session:
        session.execute(READ)


def write(database: Database) -> None:
    with database.transaction() as session:
        session.add(AuditEntry(action="drain", subject="a"))


def fetch(database: Database) -> None:
    database.fetch(READ, {})


def prepare_and_change_type(database: Database, database_url: str, use: Callable[[Database], None]) -> None:
    for _ in range(USES):
        use(database)
    with opened(database_url) as connection:
        connection.execute(text("ALTER TABLE audit_entry ALTER id TYPE INTEGER"))


@pytest.mark.parametrize("use", [read, write])
def test_session_fails_once(database: Database, database_url: str, use: Callable[[Database], None]) -> None:
    prepare_and_change_type(database, database_url, use)
    with pytest.raises(OperationalError):
        use(database)
    use(database)


def test_fetch_is_repeated(database: Database, database_url: str) -> None:
    prepare_and_change_type(database, database_url, fetch)
    assert database.fetch(READ, {}) == []
