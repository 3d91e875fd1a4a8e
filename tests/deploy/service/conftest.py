"""A folder with the test's own Procfile."""

from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with this repository's `deploy`, and space for the test's own Procfile."""
    (tmp_path / "deploy").symlink_to(REPOSITORY / "deploy")
    return tmp_path
