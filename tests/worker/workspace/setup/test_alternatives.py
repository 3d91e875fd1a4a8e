"""A request that names no provider: the repository is cloned from the first provider that has it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.git_http import GitServer, running_git_server
from tests.worker.workspace.setup.shells import TOKEN, LocalShell, app_on, files_that_contain, project_of
from worker.workspace.failures import RepositoryCloneFailed
from worker.workspace.git_remotes import GitRepository
from worker.workspace.setup import Project, prepare_repository

# Nothing listens there.
UNREACHABLE = GitRepository("acme/app", "gitlab", token="absent-t0ken", host="http://127.0.0.1:9")
# A provider that has no public host.
UNUSABLE = GitRepository("acme/app", "bitbucket_data_center", token="dc-t0ken")


def project_at(sandbox: Path, *repositories: GitRepository, **more: object) -> Project:
    return project_of(sandbox, repositories[0], alternatives=repositories[1:], **more)


@pytest.fixture
def missing_repository(tmp_path: Path) -> Iterator[GitRepository]:
    """The repository at a provider that does not have it."""
    root = tmp_path / "elsewhere"
    root.mkdir()
    with running_git_server(root, password=TOKEN) as server:
        yield app_on(server)


def test_repository_is_cloned_from_the_first_provider_that_has_it(
    shell: LocalShell, sandbox: Path, server: GitServer, missing_repository: GitRepository
) -> None:
    project = project_at(sandbox, UNUSABLE, missing_repository, app_on(server))
    for _ in range(2):  # the second start finds the clone
        assert prepare_repository(shell, project).provider == "github"
        remote = shell.git(sandbox / "work dir" / "app", "remote", "get-url", "origin")
        assert remote == f"{server.url}/acme/app.git"
    assert not files_that_contain(sandbox, TOKEN)


def test_error_names_each_provider(shell: LocalShell, sandbox: Path, missing_repository: GitRepository) -> None:
    with pytest.raises(RepositoryCloneFailed) as failure:
        prepare_repository(shell, project_at(sandbox, missing_repository, UNUSABLE))
    first, *others = str(failure.value).splitlines()
    assert "git_provider" in first
    assert others[0].startswith("github: cloning acme/app failed")
    assert others[-1] == "bitbucket_data_center: no host is stored for the provider bitbucket_data_center"
    assert "t0ken" not in str(failure.value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"host": UNREACHABLE.host}, "127.0.0.1"),
        ({"token": "wrong-t0ken"}, "Authentication failed"),
        ({"branch": "none"}, "none"),
    ],
)
def test_another_provider_is_not_tried_after_any_other_error(
    shell: LocalShell, sandbox: Path, server: GitServer, change: dict[str, str], text: str
) -> None:
    own = app_on(server, **change)
    with pytest.raises(RepositoryCloneFailed, match=text):
        prepare_repository(shell, project_at(sandbox, own, app_on(server)))
    assert not (sandbox / "work dir" / "app").exists()


def test_timeout_ends_the_start(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    project = project_at(sandbox, app_on(server), app_on(server, provider="gitlab"), clone_seconds=0.001)
    with pytest.raises(RepositoryCloneFailed, match="did not end within"):
        prepare_repository(shell, project)
    assert len([command for command in shell.commands if "clone --quiet" in command]) == 1


def test_clone_in_use_is_not_left_for_another_provider(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    prepare_repository(shell, project_of(sandbox, app_on(server)))

    def refuse(_: str) -> None:
        raise RepositoryCloneFailed("another conversation is using the clone")

    both = (app_on(server, branch="topic"), app_on(server, provider="gitlab", branch="topic"))
    with pytest.raises(RepositoryCloneFailed, match="another conversation is using the clone"):
        prepare_repository(shell, project_at(sandbox, *both), refuse)
