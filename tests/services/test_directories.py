"""Directories of servers are removed with what is mounted in them."""

import subprocess
from pathlib import Path

from tests.services.directories import short_directory


def test_directory_that_a_killed_engine_has_mounted_on_itself_is_removed() -> None:
    with short_directory("mounted") as directory:
        data = directory / "data"
        data.mkdir()
        subprocess.run(["mount", "--bind", data, data], check=True)
        assert str(data) in Path("/proc/self/mounts").read_text()
    assert str(data) not in Path("/proc/self/mounts").read_text()
    assert not directory.exists()
