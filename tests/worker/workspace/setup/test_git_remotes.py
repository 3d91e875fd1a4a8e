"""URLs and credentials of repositories, by provider."""

from pathlib import Path

import pytest

from tests.worker.workspace.setup.shells import LocalShell, project_of
from worker.workspace.git_remotes import Repository, UnusableRemote
from worker.workspace.setup import RepositoryCloneFailed, prepare_repository


@pytest.mark.parametrize(
    ("repository", "url"),
    [
        (Repository("acme/app"), "https://github.com/acme/app.git"),
        (Repository("acme/app.git"), "https://github.com/acme/app.git"),
        (Repository("group/sub/app", "gitlab"), "https://gitlab.com/group/sub/app.git"),
        (Repository("acme/app", "gitlab", host="git.acme.org"), "https://git.acme.org/acme/app.git"),
        (Repository("acme/app", "gitlab", host="http://10.0.0.1:8080/"), "http://10.0.0.1:8080/acme/app.git"),
        (Repository("acme/app", "bitbucket"), "https://bitbucket.org/acme/app.git"),
        (Repository("acme/app", "forgejo"), "https://codeberg.org/acme/app.git"),
        (
            Repository("ACME/app", "bitbucket_data_center", host="bb.acme.org"),
            "https://bb.acme.org/scm/ACME/app.git",
        ),
        (Repository("acme/My Team/app", "azure_devops"), "https://dev.azure.com/acme/My%20Team/_git/app"),
        (
            Repository("acme/My Team/My app", "azure_devops", host="dev.azure.com/acme"),
            "https://dev.azure.com/acme/My%20Team/_git/My%20app",
        ),
        (
            Repository("acme/app", "azure_devops", host="https://dev.azure.com/acme/"),
            "https://dev.azure.com/acme/acme/_git/app",
        ),
    ],
)
def test_repository_has_its_provider_s_url(repository: Repository, url: str) -> None:
    assert repository.url == url


@pytest.mark.parametrize(
    "repository",
    [
        Repository("app"),
        Repository("../app"),
        Repository("acme//app"),
        Repository("acme/.."),
        Repository("acme/app", "bitbucket_data_center"),
        Repository("acme/app", "enterprise_sso"),
        Repository("acme/app", host="file:///etc"),
        Repository("acme/app", host="https://user:pass@acme.org"),
    ],
)
def test_invalid_url_is_refused_before_any_command(shell: LocalShell, sandbox: Path, repository: Repository) -> None:
    with pytest.raises(UnusableRemote):
        _ = repository.url
    with pytest.raises(RepositoryCloneFailed):
        prepare_repository(shell, project_of(sandbox, repository))
    assert not [command for command in shell.commands if "clone" in command]


@pytest.mark.parametrize(
    ("repository", "credential"),
    [
        (Repository("a/b", token="t/k"), "https://x-access-token:t%2Fk@github.com\n"),
        (Repository("a/b", "gitlab", token="tk", host="http://git:81"), "http://oauth2:tk@git:81\n"),
        (Repository("a/b", "bitbucket", token="tk"), "https://x-token-auth:tk@bitbucket.org\n"),
        (Repository("a/b", "bitbucket", token="jo@x.org:p:w"), "https://jo%40x.org:p%3Aw@bitbucket.org\n"),
        (Repository("a/b", "forgejo", token="tk"), "https://token:tk@codeberg.org\n"),
        (Repository("a/b", "github"), ""),
    ],
)
def test_token_has_the_user_name_of_its_provider(repository: Repository, credential: str) -> None:
    assert repository.credential == credential
    assert repository.token is None or repository.token not in repr(repository)
