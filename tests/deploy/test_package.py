"""The package: a wheel contains the whole service, and runs it outside the repository."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from shared import __version__
from shared.cli.app import app
from tests.services.directories import REPOSITORY

PACKAGES = ("api", "deploy", "shared", "worker")
# A module that an earlier version had, as its build leaves it in the source.
EARLIER = Path("build/lib/api/lists/__init__.py")
RELEASE = re.compile(r"^## \[(\d[\d.]*)\] - \d{4}-\d{2}-\d{2}$", re.MULTILINE)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build a wheel offline, from a copy of the source, because setuptools writes into the source."""
    source = tmp_path_factory.mktemp("source")
    for name in tracked(*PACKAGES, "Procfile", "README.md", "pyproject.toml"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / name, source / name)
    earlier = source / EARLIER
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True, timeout=120)
    [found] = (source / "dist").glob("*.whl")
    return found


def tracked(*paths: str) -> list[str]:
    command = ["git", "ls-files", "--", *paths]
    return subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True, text=True).stdout.splitlines()


def test_wheel_has_every_file_of_the_service(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert set(tracked(*PACKAGES)) - set(archive.namelist()) == set()
        executable = archive.getinfo("deploy/service/run").external_attr >> 16
    assert executable & 0o111


def test_wheel_has_no_module_of_an_earlier_build(wheel: Path) -> None:
    """A package of the name of today's module would be imported in its place."""
    with zipfile.ZipFile(wheel) as archive:
        assert EARLIER.relative_to("build/lib").as_posix() not in archive.namelist()
        assert "api/lists.py" in archive.namelist()


def test_wheel_prepares_an_installation_outside_of_the_repository(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    program = """
from deploy.service.processes import find_procfile, read_processes
from shared.cli.app import main
import api.app, worker.engine.confinement
print([process.name for process in read_processes(find_procfile(), [], embedded_broker=True)])
main(["migrate"])
"""
    folder = tmp_path / "folder"
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AW_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=environment | {"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "['broker', 'web', 'door', 'egress-proxy', 'worker', 'flower']" in done.stdout
    assert (folder / "var" / "agent-workspace.db").stat().st_size


def test_version_is_the_same_everywhere(client: TestClient) -> None:
    assert CliRunner().invoke(app, ["--version"]).output == f"agent-workspace {__version__}\n"
    assert client.get("/server_info").json()["version"] == __version__
    assert client.get("/openapi.json").json()["info"]["version"] == __version__
    assert RELEASE.findall((REPOSITORY / "CHANGELOG.md").read_text())[0] == __version__


@pytest.mark.parametrize(
    ("words", "becomes"),
    [
        (["server"], [sys.executable, "-P", "-m", "api"]),
        (["worker"], [sys.executable, "-P", "-m", "worker"]),
        (["all", "web=2"], [str(REPOSITORY / "deploy/service/run"), sys.executable, "web=2"]),
    ],
)
def test_command_becomes_a_process(
    monkeypatch: pytest.MonkeyPatch, words: Sequence[str], becomes: Sequence[str]
) -> None:
    started: list[Sequence[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: started.append(command))
    CliRunner().invoke(app, words)
    assert started == [becomes]
