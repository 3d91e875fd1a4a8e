"""Clones: shallow, private, and safe to repeat."""

import os
import shutil
import stat
from pathlib import Path

import pytest

from shared.errors import Cancelled
from tests.services.git_http import GitServer
from tests.waiting import eventually
from tests.worker.workspace.setup.shells import CONVERSATION, TOKEN, LocalShell, app_on, files_that_contain, project_of
from worker.workspace.failures import RepositoryCloneFailed
from worker.workspace.git_remotes import GitRepository
from worker.workspace.setup import ProjectContents, prepare_repository


def test_clone_reports_its_scripts(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    assert prepare_repository(shell, project_of(sandbox, app_on(server))) == ProjectContents(
        setup_script=False, git_hook=False
    )
    assert prepare_repository(shell, project_of(sandbox, app_on(server))) == ProjectContents()  # the clone exists


def test_clone_is_shallow_and_on_a_new_branch(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    project = project_of(sandbox, app_on(server))
    prepare_repository(shell, project)
    clone = sandbox / "work dir" / "app"
    assert project.folder == str(clone)
    assert (clone / "README.md").read_text() == "second\n"
    assert shell.git(clone, "rev-list", "--count", "HEAD") == "1"
    assert shell.git(clone, "symbolic-ref", "--short", "HEAD") == "openhands-workspace-01234567"
    assert shell.git(clone, "remote", "get-url", "origin") == f"{server.url}/acme/app.git"


def test_full_clone_has_the_history(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    prepare_repository(shell, project_of(sandbox, app_on(server, full=True)))
    assert shell.git(sandbox / "work dir" / "app", "rev-list", "--count", "HEAD") == "2"


def test_branch_of_the_request_is_checked_out(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    prepare_repository(shell, project_of(sandbox, app_on(server, branch="feature/x")))
    assert shell.git(sandbox / "work dir" / "app", "symbolic-ref", "--short", "HEAD") == "feature/x"


def test_empty_repository_can_be_cloned(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    server.add_repository("acme/empty", [])
    repository = GitRepository("acme/empty", token=TOKEN, host=server.url)
    prepare_repository(shell, project_of(sandbox, repository))
    clone = sandbox / "work dir" / "empty"
    assert shell.git(clone, "symbolic-ref", "--short", "HEAD") == "openhands-workspace-01234567"


def test_defect_33_token_is_in_no_file_command_or_output(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    prepare_repository(shell, project_of(sandbox, app_on(server)))
    credential = app_on(server).credential.strip().split(":")[2].split("@")[0]
    for secret in (TOKEN, credential):
        assert not files_that_contain(sandbox, secret)
        assert not [text for text in shell.commands + shell.outputs if secret in text]
    assert not list((sandbox / "shm").iterdir())
    assert server.requests


def test_credential_is_private_while_it_exists(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    modes: list[int] = []
    shell.before_clone = lambda: modes.extend(stat.S_IMODE(path.stat().st_mode) for path in (sandbox / "shm").iterdir())
    prepare_repository(shell, project_of(sandbox, app_on(server)))
    assert modes == [0o700]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"token": "wrong-t0ken"}, "Authentication failed"),
        ({"token": None}, "could not read Username"),
        ({"branch": "no-such-branch"}, "no-such-branch"),
        ({"name": "acme/none"}, "not found"),
        ({"host": "http://127.0.0.1:9"}, "Failed to connect|Could not connect|Couldn't connect"),
    ],
)
def test_defect_33_failed_clone_has_its_reason_and_leaves_no_files(
    shell: LocalShell, sandbox: Path, server: GitServer, change: dict[str, str], text: str
) -> None:
    values = {"name": "acme/app", "token": TOKEN, "host": server.url, **change}
    with pytest.raises(RepositoryCloneFailed, match=text) as failure:
        prepare_repository(shell, project_of(sandbox, GitRepository(**values)))  # type: ignore[arg-type]
    assert failure.value.reason == "clone_failed"
    assert "t0ken" not in str(failure.value)
    assert not files_that_contain(sandbox, "t0ken")
    assert not list((sandbox / "shm").iterdir())
    assert not list((sandbox / "work dir").iterdir())


def test_clone_that_exceeds_its_timeout_is_ended(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    project = project_of(sandbox, app_on(server), clone_seconds=0.001)
    with pytest.raises(RepositoryCloneFailed, match=r"did not end within 0\.001 s"):
        prepare_repository(shell, project)
    assert not list((sandbox / "work dir").iterdir())
    assert not list((sandbox / "shm").iterdir())


def test_clone_that_is_killed_has_not_exceeded_its_timeout(
    shell: LocalShell, sandbox: Path, server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kernel does if the sandbox has no memory left."""
    killed = sandbox / "git"
    killed.write_text(f'#!/bin/sh\ncase "$*" in *clone*) kill -9 $$ ;; esac\nexec {shutil.which("git")} "$@"\n')
    killed.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sandbox}:{os.environ['PATH']}")
    with pytest.raises(RepositoryCloneFailed, match=r"cloning acme/app failed: (Killed|it ended with 137)"):
        prepare_repository(shell, project_of(sandbox, app_on(server)))
    assert not list((sandbox / "work dir").iterdir())


def test_existing_clone_is_kept(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    project = project_of(sandbox, app_on(server))
    prepare_repository(shell, project)
    (sandbox / "work dir" / "app" / "made.txt").write_text("the agent's work")
    requested = len(server.requests)
    prepare_repository(shell, project)
    assert (sandbox / "work dir" / "app" / "made.txt").exists()
    assert len(server.requests) == requested


def test_remains_of_an_interrupted_attempt_are_removed(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    unfinished = sandbox / "work dir" / f".app.clone-{CONVERSATION.hex}-dead"
    unfinished.mkdir(parents=True)
    (unfinished / "half").write_text("a file")
    stale = sandbox / "shm" / f"aw-git-{CONVERSATION.hex}-dead"
    stale.mkdir()
    (stale / "credential").write_text(TOKEN)
    other = sandbox / "shm" / "aw-git-of-another-conversation"
    other.mkdir()
    prepare_repository(shell, project_of(sandbox, app_on(server)))
    assert [path.name for path in (sandbox / "work dir").iterdir()] == ["app"]
    assert list((sandbox / "shm").iterdir()) == [other]


def test_credential_of_an_abandoned_attempt_expires(
    shell: LocalShell, sandbox: Path, server: GitServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else removes it if the start was cancelled, or its worker has died, before git ran."""

    def cancel() -> None:
        raise Cancelled

    late = sandbox / "late"
    (sandbox / "sleep").write_text(f"#!/bin/sh\nuntil [ -e '{late}' ]; do {shutil.which('sleep')} 0.01; done\n")
    (sandbox / "sleep").chmod(0o755)
    monkeypatch.setenv("PATH", f"{sandbox}:{os.environ['PATH']}")
    shell.before_clone = cancel
    with pytest.raises(Cancelled):
        prepare_repository(shell, project_of(sandbox, app_on(server)))
    try:
        [private] = (sandbox / "shm").iterdir()
        assert (private / "credential").read_text() == app_on(server).credential
    finally:
        late.touch()
    eventually(lambda: not list((sandbox / "shm").iterdir()))


def test_older_attempt_that_finishes_first_wins(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    project = project_of(sandbox, app_on(server))
    older = LocalShell(sandbox / "home")
    shell.before_clone = lambda: prepare_repository(older, project)
    prepare_repository(shell, project)
    assert [path.name for path in (sandbox / "work dir").iterdir()] == ["app"]
    assert not list((sandbox / "shm").iterdir())


def test_folder_with_other_files_is_left_unchanged(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    folder = sandbox / "work dir" / "app"
    folder.mkdir(parents=True)
    (folder / "precious").write_text("work")
    with pytest.raises(RepositoryCloneFailed, match="is not a clone"):
        prepare_repository(shell, project_of(sandbox, app_on(server)))
    assert (folder / "precious").exists()


def test_empty_folder_is_cloned_into(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    (sandbox / "work dir" / "app").mkdir(parents=True)
    prepare_repository(shell, project_of(sandbox, app_on(server)))
    assert (sandbox / "work dir" / "app" / "README.md").exists()


def test_shell_has_a_longer_timeout_than_git(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    prepare_repository(shell, project_of(sandbox, app_on(server), clone_seconds=33))
    assert shell.timeouts[-1] > 33
