"""`deploy/canvas` unpacks the web UI where the API looks for it."""

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY


def install_in(folder: Path) -> None:
    """Let the web UI be in a folder already, so that nothing is fetched."""
    folder.mkdir(parents=True)
    digest = hashlib.sha512((REPOSITORY / "deploy" / "canvas").read_bytes()).hexdigest()
    (folder / ".made-from").write_text(f"{digest}  -\n")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project folder without npm and without a web UI."""
    (tmp_path / "deploy").mkdir()
    for name in ("canvas", "progress.sh"):
        shutil.copy2(REPOSITORY / "deploy" / name, tmp_path / "deploy")
    (tmp_path / "shared").symlink_to(REPOSITORY / "shared")
    (tmp_path / "var").mkdir()
    return tmp_path


def unpack(project: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    programs = project / "programs"
    programs.mkdir()
    for name in ("bash", "cat", "dirname", "ls", "sha512sum"):
        (programs / name).symlink_to(str(shutil.which(name)))
    return subprocess.run(
        [project / "deploy" / "canvas", sys.executable],
        env={"PATH": str(programs), **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_web_ui_is_unpacked_into_the_folder_of_the_settings(project: Path, tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    install_in(folder)
    (project / "var" / "env").write_text(f"AW_CANVAS_DIR={folder}\n")
    done = unpack(project)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_var_directory_of_another_installation_may_be_named(project: Path, tmp_path: Path) -> None:
    """As docs/use/web-ui.md says for services that `make run` does not start."""
    install_in(tmp_path / "api" / "canvas")
    done = unpack(project, AW_VAR_DIR=str(tmp_path / "api"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_missing_web_ui_is_fetched_with_npm(project: Path) -> None:
    done = unpack(project)
    assert done.returncode == 1
    assert "npm is needed to fetch the web page" in done.stderr


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (("agent-workspace.db",), "has files that make page has not put there: name another folder in AW_CANVAS_DIR"),
        ((".hidden",), "has files that make page has not put there: name another folder in AW_CANVAS_DIR"),
        ((".made-from", "index.html"), "npm is needed"),
        ((), "npm is needed"),
    ],
)
def test_only_an_earlier_web_ui_is_replaced(
    project: Path, tmp_path: Path, files: tuple[str, ...], complaint: str
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in files:
        (folder / name).touch()
    (project / "var" / "env").write_text(f"AW_CANVAS_DIR={folder}\n")
    done = unpack(project)
    assert (done.returncode, complaint in done.stderr) == (1, True), done.stderr
    assert sorted(each.name for each in folder.iterdir()) == sorted(files)
