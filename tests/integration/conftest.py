"""Databases for services that migrate them by themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.postgres import Postgres


@pytest.fixture
def empty_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database without migrations."""
    if kind == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: Postgres = request.getfixturevalue("postgres_server")
    name = server.create()
    yield server.url(name)
    server.drop(name)
