"""The launcher of the sandbox image: it starts no server while agents' programs could read the server's keys."""

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).parents[2] / "deploy" / "image" / "sandbox" / "launch.py"
KEY = b"key-of-the-session"
# The image's user, because permissions do not restrict root.
USER = 10001


@pytest.fixture
def launch() -> ModuleType:
    """The launcher, which is in no package."""
    spec = importlib.util.spec_from_file_location("launch", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def folder() -> Iterator[Path]:
    """The agents' folder with the configuration, which is read-only, in a place that every user can reach."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        folder = Path(place, "workspace")
        folder.mkdir()
        (folder / "config.json").write_bytes(KEY)
        (folder / "config.json").chmod(0o444)
        if os.geteuid() == 0:
            os.chown(folder, USER, USER)
        yield folder
        folder.chmod(0o755)


@contextmanager
def without_roots_rights() -> Iterator[None]:
    """Act as the image's user, if the tests run as root."""
    user = os.geteuid()
    os.seteuid(USER if user == 0 else user)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("mode", [0o755, 0o1777, 0o555, 0o500, 0o400, 0o000])
def test_configuration_is_removed_whatever_rights_its_folder_has(launch: ModuleType, folder: Path, mode: int) -> None:
    folder.chmod(mode)
    with without_roots_rights():
        taken = launch.take(str(folder / "config.json"))
    assert Path(taken).read_bytes() == KEY
    assert (folder / "config.json").read_bytes() == b""


def test_server_does_not_start_beside_a_configuration_that_cannot_be_removed(
    launch: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.chmod(0o555)
    monkeypatch.setattr(launch, "restore_access", lambda _: None)
    with without_roots_rights(), pytest.raises(SystemExit, match="can't be removed, and contains keys"):
        launch.take(str(folder / "config.json"))


def test_server_does_not_start_without_a_configuration(launch: ModuleType, folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(SystemExit, match="is missing or empty"):
        launch.take(str(folder / "config.json"))


# Instead of the agent server: what it is started with.
SERVER = """
import gc
COLLECTS = gc.isenabled()
def main(): print(COLLECTS, gc.isenabled(), gc.get_freeze_count() > 0)
"""


def test_server_is_imported_without_garbage_collection_and_runs_with_it(tmp_path: Path) -> None:
    package = tmp_path / "openhands" / "agent_server"
    package.mkdir(parents=True)
    (package / "__main__.py").write_text(SERVER)
    environment = {"PYTHONPATH": str(tmp_path)}
    ran = subprocess.run([sys.executable, SOURCE], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True", "True"]
