"""An existing clone, for a start with a branch: the branch is checked out, or an error says why not."""

from pathlib import Path

import pytest

from tests.services.git_http import GitServer
from tests.worker.workspace.setup.shells import TOKEN, LocalShell, app_on, files_that_contain, project_of
from worker.workspace.failures import RepositoryCloneFailed
from worker.workspace.setup import prepare_repository


@pytest.fixture
def clone(shell: LocalShell, sandbox: Path, server: GitServer) -> Path:
    """A clone as a start without a branch leaves it."""
    prepare_repository(shell, project_of(sandbox, app_on(server)))
    return sandbox / "work dir" / "app"


def head(shell: LocalShell, clone: Path) -> str:
    return shell.git(clone, "rev-parse", "--abbrev-ref", "HEAD")


def send(shell: LocalShell, sandbox: Path, server: GitServer, branch: str, **more: object) -> str | None:
    return prepare_repository(shell, project_of(sandbox, app_on(server, branch=branch, **more))).branch


def test_branch_is_fetched_and_checked_out(shell: LocalShell, sandbox: Path, server: GitServer, clone: Path) -> None:
    (clone / "untracked.txt").write_text("the agent's work")
    for branch in ("feature/x", "topic", "feature/x"):
        assert send(shell, sandbox, server, branch) == branch
        assert head(shell, clone) == branch
        assert shell.git(clone, "rev-parse", "--abbrev-ref", "@{upstream}") == f"origin/{branch}"
    assert (clone / "untracked.txt").exists()
    assert shell.git(clone, "rev-parse", "--is-shallow-repository") == "true"
    assert not files_that_contain(sandbox, TOKEN)
    assert not list((sandbox / "shm").iterdir())


def test_current_branch_of_the_clone_is_left_unchanged(
    shell: LocalShell, sandbox: Path, server: GitServer, clone: Path
) -> None:
    shell.git(clone, "checkout", "--quiet", "-b", "mine")
    (clone / "README.md").write_text("changed")
    requested = len(server.requests)
    assert send(shell, sandbox, server, "mine") == "mine"
    assert (clone / "README.md").read_text() == "changed"
    assert len(server.requests) == requested


def test_branch_created_in_the_sandbox_is_found(
    shell: LocalShell, sandbox: Path, server: GitServer, clone: Path
) -> None:
    shell.git(clone, "branch", "mine")
    assert send(shell, sandbox, server, "mine") == "mine"
    assert head(shell, clone) == "mine"


def test_branch_that_does_not_exist_is_an_error(
    shell: LocalShell, sandbox: Path, server: GitServer, clone: Path
) -> None:
    before = head(shell, clone)
    with pytest.raises(RepositoryCloneFailed, match="nope"):
        send(shell, sandbox, server, "nope")
    assert head(shell, clone) == before
    assert not list((sandbox / "shm").iterdir())


def test_uncommitted_changes_prevent_a_checkout(
    shell: LocalShell, sandbox: Path, server: GitServer, clone: Path
) -> None:
    (clone / "README.md").write_text("changed")
    with pytest.raises(RepositoryCloneFailed, match=r"on openhands-workspace-01234567, with changes .* not committed"):
        send(shell, sandbox, server, "topic")
    assert (clone / "README.md").read_text() == "changed"
    assert head(shell, clone) == "openhands-workspace-01234567"


def test_inherited_branch_leaves_the_branch_of_the_clone_unchanged(
    shell: LocalShell, sandbox: Path, server: GitServer, clone: Path
) -> None:
    (clone / "README.md").write_text("changed")
    assert send(shell, sandbox, server, "topic", keeps_branch=True) == "openhands-workspace-01234567"


def test_full_clone_keeps_its_history(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    prepare_repository(shell, project_of(sandbox, app_on(server, full=True)))
    assert send(shell, sandbox, server, "topic") == "topic"
    clone = sandbox / "work dir" / "app"
    assert shell.git(clone, "rev-parse", "--is-shallow-repository") == "false"
    assert shell.git(clone, "rev-list", "--count", "HEAD") == "2"


def test_tag_is_checked_out(shell: LocalShell, sandbox: Path, server: GitServer, clone: Path) -> None:
    shell.git(clone, "tag", "v1")
    shell.git(clone, "checkout", "--quiet", "-b", "mine")
    for _ in range(2):
        assert send(shell, sandbox, server, "v1") == "v1"
        assert shell.git(clone, "describe", "--tags") == "v1"
