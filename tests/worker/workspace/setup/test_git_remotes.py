"""URLs and credentials of repositories, by provider."""

from pathlib import Path

import pytest

from tests.worker.workspace.setup.shells import LocalShell, project_of
from worker.workspace.failures import RepositoryCloneFailed
from worker.workspace.git_remotes import GitRepository, UnusableRemote
from worker.workspace.setup import prepare_repository


@pytest.mark.parametrize(
    ("repository", "url"),
    [
        (GitRepository("acme/app"), "https://github.com/acme/app.git"),
        (GitRepository("acme/app.git"), "https://github.com/acme/app.git"),
        (GitRepository("group/sub/app", "gitlab"), "https://gitlab.com/group/sub/app.git"),
        (GitRepository("acme/app", "gitlab", host="git.acme.org"), "https://git.acme.org/acme/app.git"),
        (GitRepository("acme/app", "gitlab", host="http://10.0.0.1:8080/"), "http://10.0.0.1:8080/acme/app.git"),
        (GitRepository("acme/app", "bitbucket"), "https://bitbucket.org/acme/app.git"),
        (GitRepository("acme/app", "forgejo"), "https://codeberg.org/acme/app.git"),
        (
            GitRepository("ACME/app", "bitbucket_data_center", host="bb.acme.org"),
            "https://bb.acme.org/scm/ACME/app.git",
        ),
        (GitRepository("acme/My Team/app", "azure_devops"), "https://dev.azure.com/acme/My%20Team/_git/app"),
        (
            GitRepository("acme/My Team/My app", "azure_devops", host="dev.azure.com/acme"),
            "https://dev.azure.com/acme/My%20Team/_git/My%20app",
        ),
        (
            GitRepository("acme/app", "azure_devops", host="https://dev.azure.com/acme/"),
            "https://dev.azure.com/acme/acme/_git/app",
        ),
    ],
)
def test_repository_has_its_provider_s_url(repository: GitRepository, url: str) -> None:
    assert repository.url == url


@pytest.mark.parametrize(
    "repository",
    [
        GitRepository("app"),
        GitRepository("../app"),
        GitRepository("acme//app"),
        GitRepository("acme/.."),
        GitRepository("acme/app", "bitbucket_data_center"),
        GitRepository("acme/app", "enterprise_sso"),
        GitRepository("acme/app", host="file:///etc"),
        GitRepository("acme/app", host="https://user:pass@acme.org"),
    ],
)
def test_invalid_url_is_refused_before_any_command(shell: LocalShell, sandbox: Path, repository: GitRepository) -> None:
    with pytest.raises(UnusableRemote):
        _ = repository.url
    with pytest.raises(RepositoryCloneFailed):
        prepare_repository(shell, project_of(sandbox, repository))
    assert not [command for command in shell.commands if "clone" in command]


@pytest.mark.parametrize(
    ("repository", "credential"),
    [
        (GitRepository("a/b", token="t/k"), "https://x-access-token:t%2Fk@github.com\n"),
        (GitRepository("a/b", "gitlab", token="tk", host="http://git:81"), "http://oauth2:tk@git:81\n"),
        (GitRepository("a/b", "bitbucket", token="tk"), "https://x-token-auth:tk@bitbucket.org\n"),
        (GitRepository("a/b", "bitbucket", token="jo@x.org:p:w"), "https://jo%40x.org:p%3Aw@bitbucket.org\n"),
        (GitRepository("a/b", "forgejo", token="tk"), "https://token:tk@codeberg.org\n"),
        (GitRepository("a/b", "github"), ""),
    ],
)
def test_token_has_the_user_name_of_its_provider(repository: GitRepository, credential: str) -> None:
    assert repository.credential == credential
    assert repository.token is None or repository.token not in repr(repository)


def test_password_in_a_token_is_one_of_its_secrets() -> None:
    repository = GitRepository("a/b", "bitbucket", token="jo:p@ss-word")
    assert repository.secrets == ["jo:p@ss-word", "p@ss-word", "jo%3Ap%40ss-word", "p%40ss-word"]
