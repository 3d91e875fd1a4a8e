"""A folder with a Procfile of the test's own."""

from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with our `deploy` in it, and room for a Procfile of the test's own."""
    (tmp_path / "deploy").symlink_to(REPOSITORY / "deploy")
    return tmp_path
