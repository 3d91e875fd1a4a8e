"""A request that names no provider: the repository is cloned from the first provider that has it."""

from pathlib import Path

import pytest

from tests.services.git_http import GitServer
from tests.worker.workspace.setup.shells import TOKEN, LocalShell, app_on, files_that_contain, project_of
from worker.workspace.failures import RepositoryCloneFailed
from worker.workspace.git_remotes import GitRepository
from worker.workspace.setup import Project, prepare_repository

# Nothing listens there.
ABSENT = GitRepository("acme/app", "gitlab", token="absent-t0ken", host="http://127.0.0.1:9")
# A provider that has no public host.
UNUSABLE = GitRepository("acme/app", "bitbucket_data_center", token="dc-t0ken")


def project_at(sandbox: Path, *repositories: GitRepository, **more: object) -> Project:
    return project_of(sandbox, repositories[0], alternatives=repositories[1:], **more)


def test_repository_is_cloned_from_the_first_provider_that_has_it(
    shell: LocalShell, sandbox: Path, server: GitServer
) -> None:
    project = project_at(sandbox, UNUSABLE, ABSENT, app_on(server))
    for _ in range(2):  # the second start finds the clone
        prepare_repository(shell, project)
        remote = shell.git(sandbox / "work dir" / "app", "remote", "get-url", "origin")
        assert remote == f"{server.url}/acme/app.git"
    for token in ("absent-t0ken", TOKEN):
        assert not files_that_contain(sandbox, token)


def test_error_names_each_provider(shell: LocalShell, sandbox: Path) -> None:
    with pytest.raises(RepositoryCloneFailed) as failure:
        prepare_repository(shell, project_at(sandbox, ABSENT, UNUSABLE))
    first, *others = str(failure.value).splitlines()
    assert "git_provider" in first
    assert others[0].startswith("gitlab: cloning acme/app failed")
    assert others[-1] == "bitbucket_data_center: no host is stored for the provider bitbucket_data_center"
    assert "t0ken" not in str(failure.value)


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
