"""Empty databases with the newest schema: copies of a migrated one, or one that is cleared between tests."""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pytest

from shared.db.migrations import migrate
from tests.services.cleared_database import ClearedDatabase
from tests.services.postgres import Postgres


@contextmanager
def unmigrated(kind: str, directory: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Create a database of a kind without tables; yield its URL. `request` provides the server, if it needs one."""
    if kind == "sqlite":
        yield _sqlite_url(directory / "unmigrated.db")
        return
    server: Postgres = request.getfixturevalue("postgres_server")
    name = server.create()
    yield server.url(name)
    server.drop(name)


class Stores(Protocol):
    """A source of databases of one kind."""

    def fresh(self) -> AbstractContextManager[str]:
        """Create a database of the caller's own; yield its URL."""

    def cleared(self) -> AbstractContextManager[str]:
        """Clear the database of this process, for one test at a time; yield its URL. It is cheaper than `fresh`."""


class SqliteStores:
    """Copies of a migrated SQLite file, in its directory, because each commit on a disk waits for the disk.

    Args:
        template: a file in memory, which does not exist yet.
    """

    def __init__(self, template: Path) -> None:
        self._template = template
        migrate(_sqlite_url(template))

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Create a database of the caller's own; yield its URL."""
        with TemporaryDirectory(dir=self._template.parent) as directory:
            path = Path(directory) / "test.db"
            shutil.copy(self._template, path)
            yield _sqlite_url(path)

    cleared = fresh


class PostgresStores:
    """Copies of a migrated database on a real PostgreSQL server."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._template = server.create()
        migrate(server.url(self._template))
        self._cleared: ClearedDatabase | None = None

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """Create a database of the caller's own and drop it after the block; yield its URL."""
        name = self._server.create(self._template)
        try:
            yield self._server.url(name)
        finally:
            self._server.drop(name)

    @contextmanager
    def cleared(self) -> Iterator[str]:
        """Clear the database of this process, and end its connections after the block; yield its URL."""
        database, self._cleared = self._cleared or ClearedDatabase(self._server, self._template), None
        try:
            yield self._server.url(database.name)
        finally:
            if database.clear():
                self._cleared = database
            else:
                database.drop()

    def close(self) -> None:
        """Drop the cleared database."""
        if self._cleared is not None:
            self._cleared.drop()


def _sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"
