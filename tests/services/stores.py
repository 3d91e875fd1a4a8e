"""Empty databases in the newest schema: copies of a migrated one, or one that is cleared between tests."""

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
    """The URL of a database of that kind without tables; `request` is asked for the server if it needs one."""
    if kind == "sqlite":
        yield _sqlite_url(directory / "unmigrated.db")
        return
    server: Postgres = request.getfixturevalue("postgres_server")
    name = server.create()
    yield server.url(name)
    server.drop(name)


class Stores(Protocol):
    """Where fresh databases of one kind come from."""

    def fresh(self, directory: Path) -> AbstractContextManager[str]:
        """The URL of a database of one's own, with its file, if it is one, in the directory."""

    def cleared(self, directory: Path) -> AbstractContextManager[str]:
        """The URL of an empty database of this process: for one test at a time, and cheaper than `fresh`."""


class SqliteStores:
    """Copies of one migrated file."""

    def __init__(self, template: Path) -> None:
        self._template = template
        migrate(_sqlite_url(template))

    @contextmanager
    def fresh(self, directory: Path) -> Iterator[str]:
        """The URL of a database of one's own."""
        path = directory / "test.db"
        shutil.copy(self._template, path)
        yield _sqlite_url(path)

    @contextmanager
    def cleared(self, directory: Path) -> Iterator[str]:
        """The URL of an empty database, in memory: on a disk, the last connection waits for it when it is closed."""
        with TemporaryDirectory(dir=self._template.parent) as own, self.fresh(Path(own)) as url:
            yield url


class PostgresStores:
    """Copies of one migrated database on a real server."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._template = server.create()
        migrate(server.url(self._template))
        self._cleared: ClearedDatabase | None = None

    @contextmanager
    def fresh(self, directory: Path) -> Iterator[str]:
        """The URL of a database of one's own; it is dropped at the end of the block."""
        name = self._server.create(self._template)
        try:
            yield self._server.url(name)
        finally:
            self._server.drop(name)

    @contextmanager
    def cleared(self, directory: Path) -> Iterator[str]:
        """The URL of an empty database; what is still connected to it at the end of the block is disconnected."""
        database, self._cleared = self._cleared or ClearedDatabase(self._server, self._template), None
        try:
            yield self._server.url(database.name)
        finally:
            if database.clear():
                self._cleared = database
            else:
                database.drop()

    def close(self) -> None:
        """Drop the database that is cleared."""
        if self._cleared is not None:
            self._cleared.drop()


def _sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"
