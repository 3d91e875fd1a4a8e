"""git credentials in a sandbox: for each login a helper asks the service for the stored token."""

import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.app import create_app
from api.request.context import Context
from shared.crypto import Vault
from shared.db.database import Database
from shared.models import Sandbox
from shared.states import Status
from shared.users import secrets
from shared.users.secrets import ProviderCredential
from tests.factories import ApiUser, session_key_of
from tests.services.asgi import serving
from tests.services.git_http import GitServer, running_git_server
from tests.worker.workspace.setup.shells import TOKEN, LocalShell, app_on, files_that_contain, project_of
from worker.workspace.git_remotes import Logins, install_logins, list_providers
from worker.workspace.setup import prepare_repository

Tokens = dict[str, ProviderCredential]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in place of the sandbox's files."""
    made = tmp_path / "sandbox"
    (made / "ho me" / "tmp").mkdir(parents=True)
    (made / "shm").mkdir()
    return made


@pytest.fixture
def shell(folder: Path) -> LocalShell:
    return LocalShell(folder / "ho me")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    """A git server that accepts pushes with the token."""
    root = tmp_path / "git"
    root.mkdir()
    with running_git_server(root, password=TOKEN) as git:
        git.add_repository("acme/app", [{"README.md": "first\n"}])
        yield git


@pytest.fixture
def tokens(database: Database, vault: Vault, user: ApiUser, server: GitServer) -> Tokens:
    """The owner's stored tokens."""
    entry = {"token": TOKEN, "host": server.url}
    with database.transaction() as session:
        secrets.put_provider_tokens(session, vault, user.id, {"github": entry})
        return secrets.provider_tokens(session, vault, user.id)


@pytest.fixture
def clone(
    api_context: Context, shell: LocalShell, folder: Path, server: GitServer, sandbox: Sandbox, tokens: Tokens
) -> Iterator[Path]:
    """A clone in the sandbox, as a start leaves it, with a commit of its own; the service runs."""
    prepare_repository(shell, project_of(folder, app_on(server), author="A", address="a@example.org"))
    with serving(create_app(api_context)) as url:
        address = f"{url}/api/v1/sandboxes/{sandbox.id}/settings/secrets"
        for _ in range(2):  # as two starts do
            install_logins(shell, Logins(address, session_key_of(sandbox), list_providers(tokens)))
        made = folder / "work dir" / "app"
        shell.git(made, "commit", "--quiet", "--allow-empty", "--message", "made")
        yield made


def push(shell: LocalShell, clone: Path) -> int:
    command = "GIT_TERMINAL_PROMPT=0 git push --quiet origin HEAD:refs/heads/made"
    return shell.run_command(command, cwd=str(clone)).exit_code


def test_git_push_works_with_the_stored_token(
    shell: LocalShell, folder: Path, server: GitServer, clone: Path, sandbox: Sandbox
) -> None:
    assert push(shell, clone) == 0
    assert shell.git(clone, "ls-remote", "origin", "refs/heads/made")
    assert any("git-receive-pack" in request for request in server.requests)
    assert files_that_contain(folder, TOKEN) == []
    key = session_key_of(sandbox)
    assert not [text for text in shell.commands + shell.outputs if TOKEN in text or key in text]
    [kept] = files_that_contain(folder, key)
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700


def test_git_push_works_without_curl(
    shell: LocalShell, folder: Path, clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tools = folder / "bin"
    tools.mkdir()
    for name in ("sh", "cat", "git"):
        (tools / name).symlink_to(Path(str(shutil.which(name))).resolve())
    (tools / "python3").symlink_to(Path(sys.executable).resolve())
    monkeypatch.setenv("PATH", str(tools))
    assert push(shell, clone) == 0


def test_token_that_was_replaced_is_used_immediately(
    shell: LocalShell, server: GitServer, clone: Path, database: Database, vault: Vault, user: ApiUser
) -> None:
    server.password = "renewed"
    assert push(shell, clone) != 0
    with database.transaction() as session:
        secrets.put_provider_tokens(session, vault, user.id, {"github": {"token": "renewed"}})
    assert push(shell, clone) == 0


def test_sandbox_that_is_not_running_gets_no_token(
    shell: LocalShell, clone: Path, database: Database, sandbox: Sandbox
) -> None:
    with database.transaction() as session:
        session.get_one(Sandbox, sandbox.id).status = Status.PAUSED
    assert push(shell, clone) != 0


def test_other_hosts_get_no_token(shell: LocalShell, clone: Path, tmp_path: Path) -> None:
    root = tmp_path / "other"
    root.mkdir()
    with running_git_server(root, password=TOKEN) as other:
        other.add_repository("acme/app", [{"README.md": "first\n"}])
        command = f"GIT_TERMINAL_PROMPT=0 git ls-remote {other.url}/acme/app.git"
        assert shell.run_command(command, cwd=str(clone)).exit_code != 0
        assert other.requests == []


def test_app_password_has_its_user_name(shell: LocalShell, folder: Path) -> None:
    known = ProviderCredential("anna:secret:word", None, None)
    install_logins(shell, Logins("http://127.0.0.1:9", "key", list_providers({"bitbucket": known})))
    fake = folder / "bin"
    fake.mkdir()
    (fake / "curl").write_text("#!/bin/sh\necho anna:secret:word\n")
    (fake / "curl").chmod(0o755)
    send = f"printf 'protocol=https\\nhost=bitbucket.org\\n\\n' | PATH={str(fake)!r}:$PATH git credential fill"
    lines = shell.run_command(send).stdout.splitlines()
    assert {"username=anna", "password=secret:word"} <= set(lines)


def test_logins_without_tokens_run_no_command(shell: LocalShell) -> None:
    host_only = ProviderCredential(None, None, "https://git.example.com")
    install_logins(shell, Logins("http://a", "key", list_providers({"gitlab": host_only, "enterprise_sso": host_only})))
    assert shell.commands == []
