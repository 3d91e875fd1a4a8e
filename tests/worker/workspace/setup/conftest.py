"""A folder in place of a sandbox, its shell, and a git server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.git_http import GitServer, running_git_server
from tests.worker.workspace.setup.shells import TOKEN, LocalShell, project_of
from worker.workspace.setup import prepare_repository


@pytest.fixture
def sandbox(tmp_path: Path) -> Path:
    folder = tmp_path / "sandbox"
    (folder / "home" / "tmp").mkdir(parents=True)
    (folder / "shm").mkdir()
    return folder


@pytest.fixture
def shell(sandbox: Path) -> LocalShell:
    return LocalShell(sandbox / "home")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    root = tmp_path / "git"
    root.mkdir()
    with running_git_server(root, password=TOKEN) as git:
        git.add_repository(
            "acme/app", [{"README.md": "first\n"}, {"README.md": "second\n"}], branches=("topic", "feature/x")
        )
        yield git


@pytest.fixture
def checkout(shell: LocalShell, sandbox: Path) -> Path:
    prepare_repository(shell, project_of(sandbox, author="Jo", address="jo@example.org"))
    work = sandbox / "work dir"
    (work / ".openhands").mkdir()
    return work
