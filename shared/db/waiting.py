"""Waiting for a database that is not ready at a process's start, because machines and containers start in any order."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import structlog
from sqlalchemy import URL, Connection, inspect, make_url, text
from sqlalchemy.exc import OperationalError

from shared.db.database import UNAVAILABLE, Database
from shared.errors import Unavailable
from shared.reasons import more

log = structlog.get_logger()
Found = TypeVar("Found")

MIGRATIONS = Path(__file__).resolve().parents[2] / "deploy" / "migrations" / "versions"
# The entry of the troubleshooting page.
ENTRY = "the-database-is-not-ready"
# The pause between two attempts starts at the first value, and doubles up to the second one.
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 5.0


class NotMigrated(Unavailable):
    """The database responds, but a migration of this version has not been applied to it."""


NOT_READY = (*UNAVAILABLE, NotMigrated)


def await_schema(database: Database, seconds: float) -> None:
    """Wait until a database responds, and `agent-workspace db migrate` of this or a newer version has migrated it.

    Raises:
        Unavailable: the timeout has passed.
    """

    def attempt() -> None:
        with database.reading() as session:
            require_schema(session.connection())

    await_database(attempt, database.engine.url, seconds)


def require_schema(connection: Connection) -> None:
    """Check that a database has the tables and columns of this version.

    Raises:
        NotMigrated: its schema is missing or older.
    """
    found = None
    if inspect(connection).has_table("alembic_version"):
        found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    needed = newest_migration()
    if found is None or found < needed:
        has = f"has schema {found}" if found else "has no tables"
        raise NotMigrated(f"it {has}, and this version needs {needed}: run `agent-workspace db migrate`")


def newest_migration() -> str:
    """The last migration of this version, by the names of the files, because Alembic is slow to import."""
    return max(path.name.partition("_")[0] for path in MIGRATIONS.glob("[0-9]*.py"))


def await_database(
    attempt: Callable[[], Found],
    url: URL | str,
    seconds: float,
    errors: tuple[type[Exception], ...] = NOT_READY,
) -> Found:
    """Repeat `attempt` until it raises none of these errors, and return its result. The cause of a wait is logged.

    Args:
        attempt: uses the database.
        url: the database's URL; its user and password are not logged.
        seconds: max time; 0: there is one attempt.
        errors: what `attempt` may raise as long as the database is not ready.

    Raises:
        Unavailable: `attempt` still raised one of them when the time was over.
    """
    database, cause, logged = _describe(url), "", ""
    for pause in _pauses(seconds):
        try:
            return attempt()
        except errors as error:
            cause = _describe_cause(error)
        if pause and cause != logged:
            log.info("waiting_for_database", database=database, at_most_seconds=seconds, cause=cause)
        logged = cause
        time.sleep(pause)
    late = f" after {seconds:g} s" if seconds else ""
    raise Unavailable(f"the database {database} is not ready{late}: {cause} {more(ENTRY)}")


def find_host(url: URL | str) -> tuple[str, int | None]:
    """The first host of a database's URL, and its port. The host is empty if the URL names none, or a socket's folder.

    An option `host` replaces the host, as for the driver. `urlsplit` would take the beginning of some passwords for a
    port, and quote it in an error.
    """
    found = make_url(url)
    option = found.query.get("host", "")
    first = (option if isinstance(option, str) else option[0]).partition(",")[0]
    host, _, port = first.partition(":") if first.count(":") == 1 else (first, "", "")
    number = int(port) if port.isdecimal() else found.port
    return ("", number) if host.startswith("/") else (host or found.host or "", number)


def _pauses(seconds: float) -> Iterator[float]:
    """The pauses after attempts; 0 after the last one, when the time is over."""
    until, pause = time.monotonic() + seconds, FIRST_PAUSE_SECONDS
    while (left := until - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(MAX_PAUSE_SECONDS, 2 * pause)
    yield 0


def _describe(url: URL | str) -> str:
    """A database's URL without its user, its password and its options."""
    found = make_url(url)
    shown = URL.create(found.get_backend_name(), host=found.host, port=found.port, database=found.database)
    return shown.render_as_string()


def _describe_cause(error: Exception) -> str:
    cause = error.orig if isinstance(error, OperationalError) else error
    return " ".join(str(cause).split()) or type(cause).__name__
