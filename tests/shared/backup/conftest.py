"""A clean installation, into which a backup is restored."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.backup import keys
from shared.settings import Settings
from tests.services.stores import unmigrated


@pytest.fixture(autouse=True)
def _cheap_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "COST", {"n": 2, "r": 8, "p": 1})


@pytest.fixture
def empty_url(database_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of the same kind."""
    with unmigrated(database_url.partition(":")[0].partition("+")[0], tmp_path, request) as url:
        yield url


@pytest.fixture
def clean(empty_url: str, tmp_path: Path) -> Settings:
    """Settings of a clean installation."""
    return Settings(var_dir=tmp_path / "clean", database_url=empty_url)
