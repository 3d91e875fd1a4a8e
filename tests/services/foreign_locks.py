"""Locks held outside the service, such as by an operator's session or a suspended process."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine, text

from shared.db.database import Database
from tests.waiting import eventually

# Max time for which a transaction of another process than the suspended one is expected to stay open.
TRANSACTION_SECONDS = 1.0
# Sessions with an open transaction, which may hold locks.
OPEN_TRANSACTIONS = """
SELECT 1 FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND xact_start IS NOT NULL
    AND pid <> pg_backend_pid()
"""


@contextmanager
def locked_row(database: Database, table: str, row_id: str, lock: str = "UPDATE") -> Iterator[None]:
    """Lock a row in PostgreSQL for the length of the block; `lock` is the word after FOR."""
    engine = create_engine(database.engine.url)
    try:
        with engine.connect() as connection:
            found = connection.execute(text(f'SELECT id FROM "{table}" WHERE id = :id FOR {lock}'), {"id": row_id})
            assert found.one()
            yield
            connection.rollback()
    finally:
        engine.dispose()


def suspend_between_writes(database: Database, suspend: Callable[[], None], wake: Callable[[], None]) -> None:
    """Suspend a process while it holds no lock of the database, for which others would wait.

    On SQLite that is the write lock. PostgreSQL ends a suspended transaction only after `database.IDLE_SECONDS`.
    """
    if database.engine.dialect.name == "postgresql":
        eventually(lambda: _suspend_without_transaction(database, suspend, wake))
        return
    with database.transaction() as session:
        session.connection()  # takes the lock
        suspend()


def _suspend_without_transaction(database: Database, suspend: Callable[[], None], wake: Callable[[], None]) -> bool:
    """Suspend a process, and wake it again if a transaction stays open. The other processes end theirs."""
    suspend()
    ends = time.monotonic() + TRANSACTION_SECONDS
    while _has_transactions(database):
        if time.monotonic() > ends:
            wake()
            return False
        time.sleep(0.01)
    return True


def _has_transactions(database: Database) -> bool:
    with database.reading() as session:
        return session.connection().execute(text(OPEN_TRANSACTIONS)).first() is not None
