"""Fresh databases in the newest schema, as cheap as a copy."""

import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from shared.migrations import migrate
from tests.services.postgres import Postgres


class Stores(Protocol):
    """Where fresh databases of one kind come from."""

    def fresh(self, directory: Path) -> AbstractContextManager[str]:
        """The URL of a database of one's own, with its file, if it is one, in the directory."""


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


class PostgresStores:
    """Copies of one migrated database on a real server."""

    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._template = server.create()
        migrate(server.url(self._template))

    @contextmanager
    def fresh(self, directory: Path) -> Iterator[str]:
        """The URL of a database of one's own; it is dropped at the end of the block."""
        name = self._server.create(self._template)
        try:
            yield self._server.url(name)
        finally:
            self._server.drop(name)


def _sqlite_url(path: Path) -> str:
    return f"sqlite:///{path}"
