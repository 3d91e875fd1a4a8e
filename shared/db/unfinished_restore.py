"""A mark in a database whose restore is not finished: a table beside those of the schema.

The mark is in the database, because processes on other machines must read it, too (decision 66).
"""

import os
import signal
import threading
import time

import structlog
from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session

from shared.db.database import Database
from shared.errors import Conflict
from shared.reasons import more

log = structlog.get_logger()

TABLE = "unfinished_restore"
# Pause between two reads of a database that does not respond.
RETRY_SECONDS = 1.0


def mark(database_url: str, digest: str) -> None:
    """Record which backup is being restored, by the digest of its store."""
    engine = create_engine(database_url)
    try:
        with engine.begin() as connection:
            connection.execute(text(f"CREATE TABLE IF NOT EXISTS {TABLE} (digest VARCHAR(64) NOT NULL)"))
            connection.execute(text(f"DELETE FROM {TABLE}"))  # noqa: S608 - a constant
            connection.execute(text(f"INSERT INTO {TABLE} VALUES (:digest)"), {"digest": digest})  # noqa: S608
    finally:
        engine.dispose()


def read(connection: Connection) -> str | None:
    """The digest of the backup whose restore is not finished; None: none is being restored."""
    if not inspect(connection).has_table(TABLE):
        return None
    found: str | None = connection.execute(text(f"SELECT digest FROM {TABLE}")).scalar()  # noqa: S608 - a constant
    return found


def clear(session: Session) -> None:
    """Record that the restore is finished."""
    session.execute(text(f"DROP TABLE IF EXISTS {TABLE}"))


def require_finished(database: Database) -> None:
    """Check that a process of the service may start.

    If the database does not respond, it is checked as soon as it does. The process then ends itself if the restore is
    not finished.

    Raises:
        Conflict: the restore is not finished.
    """
    if not _is_finished(database):
        log.warning("database_not_read", retry_seconds=RETRY_SECONDS)
        threading.Thread(target=_check_later, args=(database,), name="unfinished-restore", daemon=True).start()


def require_none(connection: Connection) -> None:
    """Check that the database may be used: it is whole, and idle deadlines have begun again.

    Raises:
        Conflict: its restore is not finished.
    """
    if read(connection) is not None:
        raise Conflict(
            "the restore of this database is not finished: run `agent-workspace db restore` with the same backup again "
            f"{more('a-restore-did-not-finish')}"
        )


def _is_finished(database: Database) -> bool:
    """Whether the database responds, and no restore is unfinished."""
    try:
        with database.reading() as session:
            require_none(session.connection())
    except SQLAlchemyError:
        return False
    return True


def _check_later(database: Database) -> None:
    try:
        while not _is_finished(database):
            time.sleep(RETRY_SECONDS)
    except Conflict as error:
        log.critical("restore_unfinished", why=str(error))
        os.kill(os.getpid(), signal.SIGTERM)
