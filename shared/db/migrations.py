"""Migration of a database to the newest schema, safe with concurrent processes."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import structlog
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg.errors import LockNotAvailable
from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import OperationalError

from shared.db.file_owner import acting_as_owner
from shared.db.postgresql import FORMAT, OPTIONS
from shared.errors import Invalid, Unavailable
from shared.reasons import more

log = structlog.get_logger()

SCRIPTS = Path(__file__).resolve().parents[2] / "deploy" / "migrations"
# An arbitrary number that names the lock among this database's advisory locks.
POSTGRESQL_LOCK = 0x61772D6D6967
# Less than PostgreSQL's deadlock_timeout, 1 s by default. Between two attempts, requests continue.
LOCK_MILLISECONDS = 300
LOCK_PAUSE_SECONDS = 0.1
LOCK_ATTEMPTS = 150
SQLITE_PRAGMAS = (
    "busy_timeout=60000",
    "journal_mode=WAL",
    "foreign_keys=OFF",  # a table is altered by copying it, while other rows refer to its rows
)


class Schema(NamedTuple):
    """The last migration that was applied to a database, and the last one of this version."""

    found: str | None
    needed: str | None

    @property
    def is_current(self) -> bool:
        """Whether the database has the schema that this version needs."""
        return self.found == self.needed

    @property
    def is_newer(self) -> bool:
        """Whether a newer version than this one has migrated the database: this one works with it after a rollback."""
        return self.found is not None and not is_known(self.found)


def migrate(database_url: str) -> None:
    """Apply every pending migration in one transaction under one lock.

    A concurrent process waits for the lock and then finds no pending migration. A schema that is newer than this code
    is left as it is: the code was rolled back, and the newer version only added to the schema.

    Raises:
        Invalid: the database is empty, and its encoding has not all characters.
        Unavailable: other transactions, such as a backup, have used the tables for too long. Nothing was changed.
    """
    with opened(database_url) as connection:
        schema = read_schema(connection)
        if schema.is_current:
            log.info("schema_is_current", revision=schema.found)
            return
        if schema.is_newer:
            log.warning("schema_is_newer_than_this_version", revision=schema.found)
            return
        if schema.found is None:
            _require_unicode(connection)
        else:
            _lock_tables(connection)
        command.upgrade(configuration(connection), "head")
        after = revision(connection)
    log.info("schema_migrated", before=schema.found, revision=after)


def _require_unicode(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
        if encoding != "UTF8":
            raise Invalid(f"the database has the encoding {encoding}: create it with ENCODING 'UTF8'")


@contextmanager
def opened(database_url: str) -> Iterator[Connection]:
    """A connection in a transaction that excludes other migrations, and commits at the end of the block."""
    engine = _engine(database_url)
    if engine.dialect.name == "sqlite":
        event.listen(engine, "connect", _configure_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    try:
        with acting_as_owner(database_url), _file_lock(database_url), engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": POSTGRESQL_LOCK})
            yield connection
    finally:
        engine.dispose()


@contextmanager
def connected(database_url: str) -> Iterator[Connection]:
    """A connection for reads, to a database with any schema or none."""
    engine = _engine(database_url)
    try:
        with acting_as_owner(database_url), engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def configuration(connection: Connection) -> Config:
    """Alembic's configuration, without a file."""
    config = _scripts()
    config.attributes["connection"] = connection
    return config


def is_known(name: str) -> bool:
    """Whether this version has the migration of that name."""
    return name in {script.revision for script in _migrations().walk_revisions()}


def newest() -> str | None:
    """The last migration of this version."""
    return _migrations().get_current_head()


@cache
def _migrations() -> ScriptDirectory:
    """The migrations of this version, whose files are read once."""
    return ScriptDirectory.from_config(_scripts())


def _scripts() -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def revision(connection: Connection) -> str | None:
    """The last applied migration; None for an empty database."""
    return MigrationContext.configure(connection).get_current_revision()


def read_schema(connection: Connection) -> Schema:
    """Read which schema the database has, and which one this version needs."""
    return Schema(revision(connection), newest())


def _lock_tables(connection: Connection) -> None:
    """Lock every table before the first change, so that no request to a running service fails because of a deadlock.

    PostgreSQL resolves a deadlock after 1 s by aborting either side. A lock timeout below that aborts the migration's
    attempt instead of the request.
    """
    if connection.dialect.name != "postgresql":
        return  # SQLite has one writer at a time
    quote = connection.dialect.identifier_preparer.quote
    tables = ", ".join(map(quote, inspect(connection).get_table_names()))
    for left in reversed(range(LOCK_ATTEMPTS)):
        try:
            with connection.begin_nested():
                connection.execute(text(f"SET LOCAL lock_timeout = {LOCK_MILLISECONDS}"))
                connection.execute(text(f"LOCK TABLE {tables} IN ACCESS EXCLUSIVE MODE"))
                connection.execute(text("SET LOCAL lock_timeout = DEFAULT"))
        except OperationalError as error:
            if not left:
                raise (_blocked() if isinstance(error.orig, LockNotAvailable) else error) from None
            time.sleep(LOCK_PAUSE_SECONDS)
        else:
            return


def _blocked() -> Unavailable:
    hint = more("a-migration-waits-for-other-transactions")
    return Unavailable(f"other transactions, such as a backup, use the tables: nothing was changed {hint}")


def _engine(database_url: str) -> Engine:
    engine = create_engine(database_url, connect_args=_connect_options(database_url))
    if engine.dialect.name == "postgresql":
        event.listen(engine, "connect", _configure_postgresql)
    return engine


def _connect_options(database_url: str) -> dict[str, Any]:
    """Limit the time to connect, not to migrate: an address without a server causes an error within seconds."""
    is_postgresql = make_url(database_url).get_backend_name() == "postgresql"
    return {name: OPTIONS[name] for name in ("client_encoding", "connect_timeout")} if is_postgresql else {}


def _configure_postgresql(connection: Any, _record: Any) -> None:
    connection.autocommit = True  # a rollback would undo settings made in a transaction
    connection.execute(FORMAT)
    connection.autocommit = False


def _configure_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # `_begin_sqlite` begins transactions: the driver would end them at each DDL
    for pragma in SQLITE_PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _file_lock(database_url: str) -> Iterator[None]:
    # SQLite's own lock is too late: two processes that switch a new file to WAL do not wait for each other.
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
