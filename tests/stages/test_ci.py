"""`.ci/run` fails if `make test` does."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with `.ci/run`, and without a Makefile."""
    for name in (".ci/run", "tests/reruns.toml"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(REPOSITORY / name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize("flags", ["i", "n"])
def test_flags_in_the_environment_hide_no_failure(checkout: Path, flags: str) -> None:
    (checkout / "Makefile").write_text("test:\n\t@false\n")
    ended = subprocess.run([checkout / ".ci/run"], env=os.environ | {"MAKEFLAGS": flags}, check=False)
    assert ended.returncode != 0
