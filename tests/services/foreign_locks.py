"""Locks held outside the service, such as by an operator's session or a suspended process."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine, text

from shared.db.database import Database


@contextmanager
def locked_row(database: Database, table: str, row_id: str) -> Iterator[None]:
    """Lock a row in PostgreSQL for the length of the block."""
    engine = create_engine(database.engine.url)
    try:
        with engine.connect() as connection:
            found = connection.execute(text(f'SELECT id FROM "{table}" WHERE id = :id FOR UPDATE'), {"id": row_id})
            assert found.one()
            yield
            connection.rollback()
    finally:
        engine.dispose()
