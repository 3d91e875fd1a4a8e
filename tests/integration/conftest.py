"""Databases for services that migrate them by themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.stores import unmigrated


@pytest.fixture
def empty_url(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database without migrations."""
    with unmigrated(kind, tmp_path, request) as url:
        yield url
