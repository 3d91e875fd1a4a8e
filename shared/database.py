"""One database, opened once a process; every transaction is visible where it happens."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlmodel import Session

from shared import failpoints


class Database:
    """SQLite or PostgreSQL behind the same two verbs: `transaction` writes, `reading` reads."""

    def __init__(self, url: str, *, pool_size: int = 10) -> None:
        """Open lazily: no connection is made before the first use.

        Args:
            url: SQLAlchemy URL; `sqlite:///…` or `postgresql+psycopg://…`.
            pool_size: connections kept open; as many again may overflow.
        """
        self.engine = _engine(url, pool_size)
        # SQLite's writers must lock at BEGIN: a reader that turns writer fails at once, whatever its timeout.
        self._writing = self.engine.execution_options(writing=True)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        """A session that commits at the end of the block, or rolls back on an error."""
        with Session(self._writing, expire_on_commit=False) as session:
            with session.begin():
                yield session
                failpoints.before("database.commit")
            failpoints.after("database.commit")

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session for reads: what it changed is thrown away."""
        with Session(self.engine, expire_on_commit=False) as session:
            yield session

    def close(self) -> None:
        """Close every pooled connection."""
        self.engine.dispose()


def _engine(url: str, pool_size: int) -> Engine:
    if url.startswith("sqlite"):
        engine = create_engine(
            url, pool_size=pool_size, max_overflow=pool_size, hide_parameters=True, connect_args={"timeout": 10}
        )
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    return create_engine(
        url,
        pool_size=pool_size,
        max_overflow=pool_size,
        pool_pre_ping=True,
        pool_recycle=1800,
        pool_timeout=10,
        hide_parameters=True,  # an error's text must not quote what was being stored
        connect_args={"connect_timeout": 5},
    )


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves, below
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "busy_timeout=10000", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")
