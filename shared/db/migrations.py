"""Bringing a database to the newest schema, however many processes try it at once."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import OperationalError

log = structlog.get_logger()

SCRIPTS = Path(__file__).resolve().parents[2] / "deploy" / "migrations"
# Any number will do: it is the lock's name among this database's advisory locks.
POSTGRESQL_LOCK = 0x61772D6D6967
# Less than PostgreSQL's deadlock_timeout, 1 s by default; between two attempts, requests go on.
LOCK_MILLISECONDS = 300
LOCK_PAUSE_SECONDS = 0.1
LOCK_ATTEMPTS = 150
SQLITE_PRAGMAS = (
    "busy_timeout=60000",
    "journal_mode=WAL",
    "foreign_keys=OFF",  # a table is altered by copying it, and its rows are still referred to meanwhile
)


def migrate(database_url: str) -> None:
    """Run every migration that the database lacks, in one transaction under one lock.

    A second process that comes meanwhile waits, and finds nothing left to do.
    """
    with opened(database_url) as connection:
        before = revision(connection)
        if before not in {None, _newest(connection)}:
            _take_tables(connection)
        command.upgrade(configuration(connection), "head")
        after = revision(connection)
    if before == after:
        log.info("schema_is_current", revision=after)
    else:
        log.info("schema_migrated", before=before, revision=after)


@contextmanager
def opened(database_url: str) -> Iterator[Connection]:
    """A connection in a transaction that no other migration shares; it commits at the end of the block."""
    engine = _engine(database_url)
    try:
        with _file_lock(database_url), engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": POSTGRESQL_LOCK})
            yield connection
    finally:
        engine.dispose()


def configuration(connection: Connection) -> Config:
    """Alembic's configuration, there being no file of it."""
    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def revision(connection: Connection) -> str | None:
    """The last migration that the database has seen; None for an empty one."""
    return MigrationContext.configure(connection).get_current_revision()


def _newest(connection: Connection) -> str | None:
    return ScriptDirectory.from_config(configuration(connection)).get_current_head()


def _take_tables(connection: Connection) -> None:
    """Lock every table before the first change, so that no request of a running service is undone by a deadlock.

    PostgreSQL resolves a deadlock after 1 s by aborting either side. A lock timeout below that aborts the migration's
    attempt instead of the request.

    Raises:
        OperationalError: the tables were never free together.
    """
    if connection.dialect.name != "postgresql":
        return  # SQLite's writers take turns anyway
    quote = connection.dialect.identifier_preparer.quote
    tables = ", ".join(map(quote, inspect(connection).get_table_names()))
    for left in reversed(range(LOCK_ATTEMPTS)):
        try:
            with connection.begin_nested():
                connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}"))
                connection.execute(text(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE"))
                connection.execute(text("SET LOCAL lock_timeout = DEFAULT"))
        except OperationalError:
            if not left:
                raise
            time.sleep(LOCK_PAUSE_SECONDS)
        else:
            return


def _engine(database_url: str) -> Engine:
    engine = create_engine(database_url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    return engine


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # we begin transactions ourselves, below: the driver ends them at each DDL
    for pragma in SQLITE_PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _file_lock(database_url: str) -> Iterator[None]:
    # SQLite's own lock is too late: two processes that turn a new file to WAL at once don't wait for each other.
    url = make_url(database_url)
    if not url.drivername.startswith("sqlite") or not url.database:
        yield
        return
    directory = os.open(Path(url.database).absolute().parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)
