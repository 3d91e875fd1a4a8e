"""The scripts are run by the real sh, bash and git of this machine, in a folder that plays the sandbox."""

import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import pytest

from tests.services.git_http import GitServer, running_git_server
from worker.agent_server import CommandResult
from worker.git_remotes import Repository, UnusableRemote
from worker.workspace_setup import (
    Brings,
    GitHooksFailed,
    Project,
    RepositoryCloneFailed,
    SetupScriptFailed,
    WorkspaceSetupFailed,
    install_git_hooks,
    prepare_repository,
    run_setup_script,
)

CONVERSATION = UUID("0123456789abcdef0123456789abcdef")
TOKEN = "ghp_t0ken/with:odd%characters"
FAILING = "#!/bin/sh\necho no commit today >&2\nexit 1\n"


@dataclass
class LocalShell:
    """Runs commands on this machine with a home of its own, and keeps what the agent server would keep."""

    home: Path
    commands: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    before_clone: Callable[[], object] = lambda: None

    def run_command(self, command: str, cwd: str | None = None, timeout: float = 30.0) -> CommandResult:
        if "clone --quiet" in command:
            self.before_clone()
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home), "TMPDIR": str(self.home / "tmp")}
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=cwd,
            env=environment,
            text=True,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
        self.commands.append(command)
        self.outputs.append(done.stdout + done.stderr)
        self.timeouts.append(timeout)
        return CommandResult(done.returncode, done.stdout, done.stderr)

    def upload(self, path: str, content: bytes) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(content)

    def git(self, folder: Path, *arguments: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        command = ["git", *arguments]
        return subprocess.run(
            command, cwd=folder, env=environment, text=True, capture_output=True, check=True
        ).stdout.strip()


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


def project_of(sandbox: Path, repository: Repository | None = None, **more: object) -> Project:
    return Project(
        conversation_id=str(CONVERSATION),
        working_dir=str(sandbox / "work dir"),
        repository=repository,
        private_roots=(str(sandbox / "shm"),),
        **more,  # type: ignore[arg-type]
    )


def app_on(server: GitServer, **more: object) -> Repository:
    return Repository("acme/app", **{"token": TOKEN, "host": server.url, **more})  # type: ignore[arg-type]


def files_that_contain(folder: Path, text: str) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_without_a_repository_the_folder_becomes_one(shell: LocalShell, sandbox: Path) -> None:
    project = project_of(sandbox)
    prepare_repository(shell, project)
    assert (sandbox / "work dir" / ".git").is_dir()
    assert project.folder == str(sandbox / "work dir")


@pytest.mark.parametrize("scripts", [(), ("setup.sh",), ("pre-commit.sh",), ("setup.sh", "pre-commit.sh")])
def test_what_a_project_brings_is_told(shell: LocalShell, sandbox: Path, scripts: tuple[str, ...]) -> None:
    project = project_of(sandbox)
    folder = Path(project.folder, ".openhands")
    folder.mkdir(parents=True)
    for script in scripts:
        (folder / script).write_text("true\n")
    assert prepare_repository(shell, project) == Brings("setup.sh" in scripts, "pre-commit.sh" in scripts)


def test_what_a_clone_brings_is_told(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    assert prepare_repository(shell, project_of(sandbox, app_on(server))) == Brings(setup_script=False, git_hook=False)
    assert prepare_repository(shell, project_of(sandbox, app_on(server))) is None  # it was there


def test_a_repository_that_is_there_is_left_alone(shell: LocalShell, sandbox: Path) -> None:
    prepare_repository(shell, project_of(sandbox))
    work = sandbox / "work dir"
    shell.git(work, "checkout", "--quiet", "-b", "mine")
    prepare_repository(shell, project_of(sandbox))
    assert shell.git(work, "symbolic-ref", "--short", "HEAD") == "mine"


def test_defect_34_commits_are_made_under_the_users_name_whatever_it_holds(shell: LocalShell, sandbox: Path) -> None:
    name = """Jo "$(touch pwned)" `id` O'Neil; \\"""
    prepare_repository(shell, project_of(sandbox, author=name, address="jo@example.org"))
    work = sandbox / "work dir"
    assert shell.git(work, "config", "user.name") == name
    assert shell.git(work, "config", "user.email") == "jo@example.org"
    assert not list(sandbox.rglob("pwned"))


def test_a_folder_that_cannot_be_made_is_said(shell: LocalShell, sandbox: Path) -> None:
    (sandbox / "work dir").write_text("a file")
    with pytest.raises(WorkspaceSetupFailed, match="could not be made") as failure:
        prepare_repository(shell, project_of(sandbox))
    assert failure.value.reason == "workspace_setup_failed"


def test_a_clone_is_shallow_and_on_a_new_branch(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    project = project_of(sandbox, app_on(server))
    prepare_repository(shell, project)
    clone = sandbox / "work dir" / "app"
    assert project.folder == str(clone)
    assert (clone / "README.md").read_text() == "second\n"
    assert shell.git(clone, "rev-list", "--count", "HEAD") == "1"
    assert shell.git(clone, "symbolic-ref", "--short", "HEAD") == "openhands-workspace-01234567"
    assert shell.git(clone, "remote", "get-url", "origin") == f"{server.url}/acme/app.git"


def test_a_full_clone_has_the_history(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    prepare_repository(shell, project_of(sandbox, app_on(server, full=True)))
    assert shell.git(sandbox / "work dir" / "app", "rev-list", "--count", "HEAD") == "2"


def test_a_branch_that_is_named_is_checked_out(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    prepare_repository(shell, project_of(sandbox, app_on(server, branch="feature/x")))
    assert shell.git(sandbox / "work dir" / "app", "symbolic-ref", "--short", "HEAD") == "feature/x"


def test_an_empty_repository_can_be_cloned(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    server.add_repository("acme/empty", [])
    repository = Repository("acme/empty", token=TOKEN, host=server.url)
    prepare_repository(shell, project_of(sandbox, repository))
    clone = sandbox / "work dir" / "empty"
    assert shell.git(clone, "symbolic-ref", "--short", "HEAD") == "openhands-workspace-01234567"


def test_defect_33_the_token_is_in_no_file_command_or_output(
    shell: LocalShell, sandbox: Path, server: GitServer
) -> None:
    prepare_repository(shell, project_of(sandbox, app_on(server)))
    credential = app_on(server).credential.strip().split(":")[2].split("@")[0]
    for secret in (TOKEN, credential):
        assert not files_that_contain(sandbox, secret)
        assert not [text for text in shell.commands + shell.outputs if secret in text]
    assert not list((sandbox / "shm").iterdir())
    assert server.requests


def test_the_credential_is_private_while_it_exists(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    modes: list[int] = []
    shell.before_clone = lambda: modes.extend(stat.S_IMODE(path.stat().st_mode) for path in (sandbox / "shm").iterdir())
    prepare_repository(shell, project_of(sandbox, app_on(server)))
    assert modes == [0o700]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"token": "wrong-t0ken"}, "Authentication failed"),
        ({"token": None}, "could not read Username"),
        ({"branch": "no-such-branch"}, "no-such-branch"),
        ({"name": "acme/none"}, "not found"),
        ({"host": "http://127.0.0.1:9"}, "Failed to connect|Could not connect|Couldn't connect"),
    ],
)
def test_defect_33_a_failed_clone_says_why_and_leaves_nothing(
    shell: LocalShell, sandbox: Path, server: GitServer, change: dict[str, str], words: str
) -> None:
    values = {"name": "acme/app", "token": TOKEN, "host": server.url, **change}
    with pytest.raises(RepositoryCloneFailed, match=words) as failure:
        prepare_repository(shell, project_of(sandbox, Repository(**values)))  # type: ignore[arg-type]
    assert failure.value.reason == "clone_failed"
    assert "t0ken" not in str(failure.value)
    assert not files_that_contain(sandbox, "t0ken")
    assert not list((sandbox / "shm").iterdir())
    assert not list((sandbox / "work dir").iterdir())


def test_a_clone_that_takes_too_long_is_ended(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    project = project_of(sandbox, app_on(server), clone_seconds=0.001)
    with pytest.raises(RepositoryCloneFailed, match=r"did not end within 0\.001 s"):
        prepare_repository(shell, project)
    assert not list((sandbox / "work dir").iterdir())
    assert not list((sandbox / "shm").iterdir())


def test_done_twice_is_done_once(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    project = project_of(sandbox, app_on(server))
    prepare_repository(shell, project)
    (sandbox / "work dir" / "app" / "made.txt").write_text("the agent's work")
    asked = len(server.requests)
    prepare_repository(shell, project)
    assert (sandbox / "work dir" / "app" / "made.txt").exists()
    assert len(server.requests) == asked


def test_what_a_broken_attempt_left_is_removed(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
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


def test_an_older_attempt_that_finishes_first_wins(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    project = project_of(sandbox, app_on(server))
    older = LocalShell(sandbox / "home")
    shell.before_clone = lambda: prepare_repository(older, project)
    prepare_repository(shell, project)
    assert [path.name for path in (sandbox / "work dir").iterdir()] == ["app"]
    assert not list((sandbox / "shm").iterdir())


def test_a_folder_with_something_else_in_it_is_not_touched(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    folder = sandbox / "work dir" / "app"
    folder.mkdir(parents=True)
    (folder / "precious").write_text("work")
    with pytest.raises(RepositoryCloneFailed, match="holds something else"):
        prepare_repository(shell, project_of(sandbox, app_on(server)))
    assert (folder / "precious").exists()


def test_an_empty_folder_is_no_obstacle(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    (sandbox / "work dir" / "app").mkdir(parents=True)
    prepare_repository(shell, project_of(sandbox, app_on(server)))
    assert (sandbox / "work dir" / "app" / "README.md").exists()


def test_the_shell_is_waited_for_longer_than_git_may_take(shell: LocalShell, sandbox: Path, server: GitServer) -> None:
    prepare_repository(shell, project_of(sandbox, app_on(server), clone_seconds=33))
    assert shell.timeouts[-1] > 33


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
    ],
)
def test_each_provider_has_its_address(repository: Repository, url: str) -> None:
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
def test_an_impossible_address_is_refused_before_anything_is_run(
    shell: LocalShell, sandbox: Path, repository: Repository
) -> None:
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
def test_a_token_logs_in_as_its_provider_wants(repository: Repository, credential: str) -> None:
    assert repository.credential == credential
    assert repository.token is None or repository.token not in repr(repository)


@pytest.fixture
def checkout(shell: LocalShell, sandbox: Path) -> Path:
    prepare_repository(shell, project_of(sandbox, author="Jo", address="jo@example.org"))
    work = sandbox / "work dir"
    (work / ".openhands").mkdir()
    return work


def test_the_setup_script_runs_in_the_projects_folder(shell: LocalShell, checkout: Path) -> None:
    (checkout / ".openhands" / "setup.sh").write_text("[[ -n $BASH_VERSION ]] && pwd > where.txt\n")
    run_setup_script(shell, str(checkout))
    assert (checkout / "where.txt").read_text().strip() == str(checkout)


def test_defect_34_a_project_without_a_setup_script_runs_nothing(shell: LocalShell, checkout: Path) -> None:
    before = sorted(checkout.rglob("*"))
    run_setup_script(shell, str(checkout))
    assert shell.outputs[-1] == ""
    assert sorted(checkout.rglob("*")) == before
    assert list((shell.home / "tmp").iterdir()) == []


def test_defect_34_a_failing_setup_script_is_told_with_its_last_words(shell: LocalShell, checkout: Path) -> None:
    script = "seq 9999\necho key=hunter2-hunter2 >&2\nexit 7\n"
    (checkout / ".openhands" / "setup.sh").write_text(script)
    with pytest.raises(SetupScriptFailed, match="ended with 7") as failure:
        run_setup_script(shell, str(checkout), redact=lambda text: text.replace("hunter2-hunter2", "***"))
    assert failure.value.exit_code == 7
    assert failure.value.tail.endswith("9999\nkey=***")
    assert len(str(failure.value)) < 5000
    assert not list((shell.home / "tmp").iterdir())


def test_a_setup_script_that_hangs_is_ended(shell: LocalShell, checkout: Path) -> None:
    (checkout / ".openhands" / "setup.sh").write_text("echo begun\nread line || true\nexec sleep 60\n")
    with pytest.raises(SetupScriptFailed, match=r"did not end within 0\.2 s"):
        run_setup_script(shell, str(checkout), seconds=0.2)


def test_a_service_that_the_setup_script_leaves_does_not_hold_it_up(shell: LocalShell, checkout: Path) -> None:
    (checkout / ".openhands" / "setup.sh").write_text("sleep 60 & echo $! > service.pid\n")
    run_setup_script(shell, str(checkout), seconds=10)
    service = int((checkout / "service.pid").read_text())
    assert "sleep" in Path(f"/proc/{service}/cmdline").read_text()
    os.kill(service, signal.SIGKILL)


def commit(shell: LocalShell, checkout: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "HOME": str(shell.home)}
    command = ["git", "commit", "--allow-empty", "--message", "a change"]
    return subprocess.run(command, cwd=checkout, env=environment, text=True, capture_output=True, check=False)


def test_defect_35_the_projects_check_becomes_a_hook(shell: LocalShell, checkout: Path) -> None:
    (checkout / ".openhands" / "pre-commit.sh").write_text(FAILING)
    install_git_hooks(shell, str(checkout))
    refused = commit(shell, checkout)
    assert refused.returncode != 0
    assert "no commit today" in refused.stderr


def test_defect_35_the_hook_that_was_there_runs_after_it_even_if_installed_twice(
    shell: LocalShell, checkout: Path
) -> None:
    (checkout / ".openhands" / "pre-commit.sh").write_text("echo ours >> order.txt\n")
    hook = checkout / ".git" / "hooks" / "pre-commit"
    hook.write_text("#!/bin/sh\necho theirs >> order.txt\n")
    hook.chmod(0o755)
    install_git_hooks(shell, str(checkout))
    install_git_hooks(shell, str(checkout))
    assert commit(shell, checkout).returncode == 0
    assert (checkout / "order.txt").read_text() == "ours\ntheirs\n"


def test_a_project_without_a_check_gets_no_hook(shell: LocalShell, checkout: Path) -> None:
    install_git_hooks(shell, str(checkout))
    assert not (checkout / ".git" / "hooks" / "pre-commit").exists()


def test_a_hook_that_cannot_be_installed_is_said(shell: LocalShell, sandbox: Path) -> None:
    folder = sandbox / "plain"
    (folder / ".openhands").mkdir(parents=True)
    (folder / ".openhands" / "pre-commit.sh").write_text("true\n")
    with pytest.raises(GitHooksFailed, match="not a git repository"):
        install_git_hooks(shell, str(folder))
