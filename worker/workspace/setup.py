"""A conversation's project folder, made ready by the agent server's shell: clone, setup script, git hooks.

WorkspaceSetupFailed            the folder could not be made, or git would not run
├── RepositoryCloneFailed       git's last words say why
├── SetupScriptFailed           .openhands/setup.sh ended badly
└── GitHooksFailed              the pre-commit hook could not be installed

Everything here is safe to repeat: what is complete is kept, what is half done is removed and done again.

A token must not be found in the sandbox afterwards, and the agent server keeps every command's text in a
file. So it travels as a file of its own, into a folder only the sandbox's user can enter, in memory where
there is /dev/shm; git reads it from there, and the command that runs git removes it, however that ends.
"""

import secrets
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol
from urllib.parse import quote

from shared.errors import WorkspaceError
from shared.json_documents import clean_text
from shared.redaction import Redact, redacting
from worker.agent_server.responses import CommandResult
from worker.workspace.git_remotes import Repository, UnusableRemote
from worker.workspace.shell_scripts import (
    CLONE,
    CONFIGURE,
    HIDE,
    HOOKS,
    INIT,
    LOOK,
    PRE_COMMIT,
    REMOTE,
    SETUP,
    SWITCH,
    TELL,
    with_variables,
)

CLONE_SECONDS = 120.0
SETUP_SCRIPT_SECONDS = 600.0
# How long the shell may take after the program it limits was told to end.
GRACE_SECONDS = 15.0
PRIVATE_ROOTS = ("/dev/shm", "/tmp")  # noqa: S108 (a folder of mode 0700 is made there)
MAX_LINES = 20
MAX_TAIL_LENGTH = 4000
MAX_BRANCH_LENGTH = 500
# What coreutils' `timeout` answers when it had to end the program, and the agent server when it had to.
TIMED_OUT = (124, 137, -1)


class WorkspaceSetupFailed(WorkspaceError):
    """The root of the tree; `reason` is for machines, `str(error)` for people and free of secrets."""

    reason: ClassVar[str] = "workspace_setup_failed"


class RepositoryCloneFailed(WorkspaceSetupFailed):
    """The repository could not be cloned, or its branch could not be checked out."""

    reason = "clone_failed"


class SetupScriptFailed(WorkspaceSetupFailed):
    """The project's setup script ended with an error or not in time; `tail` is the end of its output."""

    reason = "setup_script_failed"

    def __init__(self, problem: str, exit_code: int, tail: str) -> None:
        super().__init__(f".openhands/setup.sh {problem}: {tail}" if tail else f".openhands/setup.sh {problem}")
        self.exit_code, self.tail = exit_code, tail


class GitHooksFailed(WorkspaceSetupFailed):
    """The project has a .openhands/pre-commit.sh that could not be made a hook."""

    reason = "git_hooks_failed"


class Shell(Protocol):
    """What this module needs of an agent server."""

    def run_command(self, command: str, cwd: str | None = None, timeout: float = 30.0) -> CommandResult:
        """Run a shell command and wait for it."""

    def upload(self, path: str, content: bytes) -> None:
        """Write a file."""


@dataclass(frozen=True)
class Project:
    """What a conversation works on, and where.

    Args:
        working_dir: the folder itself, or the one a clone is put into.
        author, address: for commits; None: as the image has it.
        clone_seconds: how long the clone may take.
        private_roots: where to try to make the folder for the credential.
        redact: hides the secrets that a command's output might quote.
    """

    conversation_id: str
    working_dir: str
    repository: Repository | None = None
    author: str | None = None
    address: str | None = None
    clone_seconds: float = CLONE_SECONDS
    private_roots: Sequence[str] = PRIVATE_ROOTS
    redact: Redact = field(default=lambda text: text, repr=False, compare=False)

    @property
    def folder(self) -> str:
        """The project's own folder."""
        if self.repository is None:
            return self.working_dir
        return f"{self.working_dir.rstrip('/')}/{self.repository.folder}"

    @property
    def mark(self) -> str:
        """The conversation's part of the names of temporary files."""
        return self.conversation_id.replace("-", "")


@dataclass(frozen=True)
class Brings:
    """Which scripts a project has for its own setup, and the branch or tag that it is on, as far as anybody looked."""

    setup_script: bool = True
    git_hook: bool = True
    branch: str | None = field(default=None, compare=False)


def prepare_repository(shell: Shell, project: Project, before_switch: Callable[[str], None] = lambda _: None) -> Brings:
    """Make `project.folder` a git repository, cloned or new.

    Without a branch of its own a clone is on a new one, `openhands-workspace-<8 of the conversation id>`.
    A clone that is there already is kept. If a branch is asked for, it is checked out, unless it holds work that is not
    committed.

    Args:
        before_switch: called with the branch that a clone is on before another is checked out; raises to refuse that.

    Returns:
        What the project has; of a clone that was there, nobody has looked for scripts.

    Raises:
        WorkspaceSetupFailed, RepositoryCloneFailed: see above.
        AgentServerError: the server could not be asked.
    """
    if project.repository is not None:
        _run(shell, _configuring(project), WorkspaceSetupFailed("the working folder can't be made"), project.redact)
        return _clone(shell, project, project.repository, before_switch)
    failure = WorkspaceSetupFailed("the working folder can't be made a repository")
    command = _configuring(project) + INIT + with_variables(TELL, project=project.folder)
    return _brings(_run(shell, command, failure, project.redact))


def run_setup_script(
    shell: Shell,
    project_dir: str,
    *,
    start_id: str,
    seconds: float = SETUP_SCRIPT_SECONDS,
    redact: Redact = lambda text: text,
) -> None:
    """Run the project's .openhands/setup.sh with bash, from the project's folder, if there is one.

    Args:
        start_id: the script runs once for it, however often this is called: a repeat waits for the end and has the
            same result.

    Raises:
        SetupScriptFailed: it ended with an error, or not within `seconds`.
    """
    values = {"folder": project_dir, "start": start_id, "seconds": f"{seconds:g}", "most": str(MAX_TAIL_LENGTH)}
    command = with_variables(SETUP, **values)
    result = shell.run_command(command, timeout=seconds + GRACE_SECONDS)
    if result.exit_code == 0:
        return
    problem = f"did not end within {seconds:g} s" if _is_late(result) else f"ended with {result.exit_code}"
    raise SetupScriptFailed(problem, result.exit_code, _tail(redact(result.output)))


def install_git_hooks(shell: Shell, project_dir: str, *, redact: Redact = lambda text: text) -> None:
    """Make the project's .openhands/pre-commit.sh a git hook, if it has one; a hook found there runs after it.

    Raises:
        GitHooksFailed: the hook could not be written.
    """
    command = with_variables(HOOKS, folder=project_dir, hook=PRE_COMMIT)
    _run(shell, command, GitHooksFailed("the pre-commit hook could not be installed"), redact)


def _configuring(project: Project) -> str:
    author, address = project.author or "", project.address or ""
    return with_variables(CONFIGURE, folder=project.working_dir, author=author, address=address)


def _clone(shell: Shell, project: Project, repository: Repository, before_switch: Callable[[str], None]) -> Brings:
    try:
        url, credential = repository.url, repository.credential
    except UnusableRemote as error:
        raise RepositoryCloneFailed(str(error)) from error
    branch = repository.branch
    head = _find_head(shell, project.folder, url, branch or "")
    if head is not None and (branch in (None, head) or repository.keeps_branch):
        return Brings(branch=clean_text(head, MAX_BRANCH_LENGTH))
    if head is not None:
        before_switch(clean_text(head, MAX_BRANCH_LENGTH) or "no branch")
    private = _store_credential(shell, project, credential)
    if head is not None:
        script = _switch_script(project, repository, head, private)
        _reach(shell, project, repository, script, f"checking out {branch} in the clone of {repository.name}")
        return Brings(branch=branch)
    script = _clone_script(project, repository, url, private)
    return replace(_brings(_reach(shell, project, repository, script, f"cloning {repository.name}")), branch=branch)


def _reach(shell: Shell, project: Project, repository: Repository, script: str, aim: str) -> CommandResult:
    result = shell.run_command(script, timeout=project.clone_seconds + GRACE_SECONDS)
    if _is_late(result):
        raise RepositoryCloneFailed(f"{aim} did not end within {project.clone_seconds:g} s")
    if result.exit_code != 0:
        hide_token = redacting([repository.token or "", quote(repository.token or "", safe="")])
        raise RepositoryCloneFailed(f"{aim} failed: {_tail(project.redact(hide_token(result.output)))}")
    return result


def _brings(result: CommandResult) -> Brings:
    told = result.stdout.splitlines()
    return Brings(setup_script="brings setup.sh" in told, git_hook="brings pre-commit.sh" in told)


def _find_head(shell: Shell, folder: str, url: str, branch: str) -> str | None:
    """The branch, or the tag asked for, that the clone is on, empty if it is on none; None: it is not there yet.

    It appears under its name only when it is complete.
    """
    result = shell.run_command(with_variables(LOOK, folder=folder, url=url, branch=branch))
    if result.exit_code == 0:
        mark, _, head = result.stdout.strip().partition("\n")
        return head.strip() if mark == "cloned" else None
    raise RepositoryCloneFailed(f"{folder} is there already and holds something else")


def _store_credential(shell: Shell, project: Project, credential: str) -> str:
    """Make a private folder with the credential in it, and remove what an attempt that broke off has left."""
    prefix = f"aw-git-{project.mark}-"
    command = with_variables(HIDE, prefix=prefix, name=prefix + secrets.token_hex(4))
    command += shlex.join(["hide", *project.private_roots])
    failure = WorkspaceSetupFailed("no private folder could be made for the credential")
    folder = _run(shell, command, failure, project.redact).stdout.strip()
    if credential:
        shell.upload(f"{folder}/credential", credential.encode())
    return folder


def _clone_script(project: Project, repository: Repository, url: str, private: str) -> str:
    parent, _, name = project.folder.rpartition("/")
    return with_variables(
        REMOTE + CLONE + TELL,
        private=private,
        url=url,
        project=project.folder,
        unfinished=f"{parent}/.{name}.clone-{project.mark}",
        attempt=secrets.token_hex(4),
        branch=repository.branch or "",
        new_branch=f"openhands-workspace-{project.mark[:8]}",
        depth="" if repository.full else "1",
        seconds=f"{project.clone_seconds:g}",
    )


def _switch_script(project: Project, repository: Repository, head: str, private: str) -> str:
    return with_variables(
        REMOTE + SWITCH,
        private=private,
        project=project.folder,
        head=head,
        branch=repository.branch or "",
        depth="" if repository.full else "1",
        seconds=f"{project.clone_seconds:g}",
    )


def _run(shell: Shell, command: str, failure: WorkspaceSetupFailed, redact: Redact) -> CommandResult:
    result = shell.run_command(command)
    if result.exit_code != 0:
        raise type(failure)(f"{failure}: {_tail(redact(result.output))}")
    return result


def _is_late(result: CommandResult) -> bool:
    return result.exit_code in TIMED_OUT


def _tail(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-MAX_LINES:])[-MAX_TAIL_LENGTH:]
