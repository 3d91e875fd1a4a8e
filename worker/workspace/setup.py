"""The setup of a conversation's project folder through the agent server's shell: clone, setup script, git hooks.

Every function is safe to repeat: a complete result is kept, an incomplete one is removed and built again.

No token may remain in the sandbox, and the agent server stores the text of every command in a file. So a token is sent
as a file of its own, to a folder that only the sandbox's user can enter, in memory if the sandbox has /dev/shm. git
reads it there. The command that runs git removes it, with any exit code; without that command, it expires.
"""

import re
import secrets
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from shared.agent_server.responses import CommandResult
from shared.json_documents import clean_text
from shared.redaction import Redact, redacting
from worker.workspace.failures import (
    GitHooksFailed,
    RepositoryCloneFailed,
    RepositoryUnavailable,
    SetupScriptFailed,
    WorkspaceSetupFailed,
)
from worker.workspace.git_remotes import GitRepository, UnusableRemote, find_head, recognize
from worker.workspace.shell_scripts import (
    CLONE,
    CONFIGURE,
    HIDE,
    HOOKS,
    INIT,
    LIST_SCRIPTS,
    MAX_OUTPUT_BYTES,
    PRE_COMMIT,
    REMOTE,
    SETUP,
    SWITCH,
    Shell,
    with_variables,
)

CLONE_SECONDS = 120.0
SETUP_SCRIPT_SECONDS = 600.0
# Seconds that the shell may take after `timeout` has sent its signal.
GRACE_SECONDS = 15.0
PRIVATE_ROOTS = ("/dev/shm", "/tmp")  # noqa: S108 (a folder of mode 0700 is created in it)
MAX_LINES = 20
MAX_TAIL_LENGTH = 4000
MAX_BRANCH_LENGTH = 500
# Exit codes after a timeout: of coreutils' `timeout`, and of the agent server.
TIMED_OUT = (124, -1)
# After a timeout too; before it, someone else has killed the process, such as the kernel for lack of memory.
KILLED = 137
# What git prints if the provider responds that there is no such repository, or none that the token may read.
NOT_FOUND = re.compile(r"^fatal: repository '.*' not found$", re.MULTILINE)
Check = Callable[[str], None]


@dataclass(frozen=True)
class Project:
    """The project of a conversation, and its folder.

    Args:
        working_dir: the project's folder, or the parent folder of a clone.
        alternatives: the same repository at other providers, which are tried in order if there is no `repository`.
        author, address: for commits; None: the image's values.
        clone_seconds: the timeout of the clone.
        private_roots: the folders to try for the credential's private folder, in order.
        redact: hides the secrets that a command's output may quote.
    """

    conversation_id: str
    working_dir: str
    repository: GitRepository | None = None
    alternatives: Sequence[GitRepository] = ()
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
    def repositories(self) -> list[GitRepository]:
        """The repository at each provider to try."""
        return [] if self.repository is None else [self.repository, *self.alternatives]

    @property
    def mark(self) -> str:
        """The conversation's part of the names of temporary files."""
        return self.conversation_id.replace("-", "")


@dataclass(frozen=True)
class ProjectContents:
    """The scripts that a project has, its branch or tag and its provider; the defaults apply until these are read."""

    setup_script: bool = True
    git_hook: bool = True
    branch: str | None = field(default=None, compare=False)
    provider: str | None = field(default=None, compare=False)


def prepare_repository(shell: Shell, project: Project, before_switch: Check = lambda _: None) -> ProjectContents:
    """Make `project.folder` a git repository, cloned or new.

    If the request names no branch, a clone gets a new one, `openhands-workspace-<8 characters of the conversation id>`.
    An existing clone is kept; the request's branch is checked out in it, unless it has uncommitted changes.

    Args:
        before_switch: called with the branch that a clone is on before another is checked out; raises to refuse that.

    Returns:
        The project's contents. The scripts of an existing clone are not listed.

    Raises:
        WorkspaceSetupFailed, RepositoryCloneFailed: see `worker.workspace.failures`.
        AgentServerError: the agent server does not respond, or rejects a command.
    """
    if project.repository is not None:
        failure = WorkspaceSetupFailed("the working folder can't be created")
        _run(shell, _configure_script(project), failure, project.redact)
        return _clone_first(shell, project, project.repositories, before_switch)
    failure = WorkspaceSetupFailed("the working folder can't be initialized as a git repository")
    command = _configure_script(project) + INIT + with_variables(LIST_SCRIPTS, project=project.folder)
    return _contents(_run(shell, command, failure, project.redact))


def read_contents(shell: Shell, project: Project) -> ProjectContents:
    """The contents of a project that an earlier run has prepared, without its scripts. Nothing is changed.

    Raises:
        AgentServerError: the agent server does not respond, or rejects a command.
    """
    provider, head = recognize(shell, project.folder, project.repositories)
    return ProjectContents(branch=clean_text(head, MAX_BRANCH_LENGTH), provider=provider)


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
        start_id: an idempotency key: a repeated call waits for the end of the first, and has the same result.

    Raises:
        SetupScriptFailed: the script exited with an error, or not within `seconds`.
    """
    values = {"folder": project_dir, "start": start_id, "seconds": f"{seconds:g}", "max_length": str(MAX_OUTPUT_BYTES)}
    command = with_variables(SETUP, **values)
    result, timed_out = _run_timed(shell, command, seconds)
    if result.exit_code == 0:
        return
    problem = f"did not end within {seconds:g} s" if timed_out else f"ended with {result.exit_code}"
    raise SetupScriptFailed(problem, result.exit_code, _tail(redact(result.output)))


def install_git_hooks(shell: Shell, project_dir: str, *, redact: Redact = lambda text: text) -> None:
    """Install the project's .openhands/pre-commit.sh as a git hook, if it has one; an existing hook runs after it.

    Raises:
        GitHooksFailed: the hook could not be written.
    """
    command = with_variables(HOOKS, folder=project_dir, hook=PRE_COMMIT)
    _run(shell, command, GitHooksFailed("the pre-commit hook could not be installed"), redact)


def _configure_script(project: Project) -> str:
    author, address = project.author or "", project.address or ""
    return with_variables(CONFIGURE, folder=project.working_dir, author=author, address=address)


def _clone_first(
    shell: Shell, project: Project, repositories: Sequence[GitRepository], before_switch: Check
) -> ProjectContents:
    """Clone the first of the repositories that exists."""
    failures = []
    for repository in repositories:
        try:
            contents = _clone(shell, project, repository, before_switch)
            return replace(contents, provider=repository.provider)
        except RepositoryUnavailable as failure:
            failures.append(failure)
    if len(failures) == 1:
        raise failures[0]
    tried = "\n".join(f"{each.provider}: {error}" for each, error in zip(repositories, failures, strict=True))
    raise RepositoryCloneFailed(f"no provider with a token has the repository; git_provider names one\n{tried}")


def _clone(shell: Shell, project: Project, repository: GitRepository, before_switch: Check) -> ProjectContents:
    try:
        url, credential = repository.url, repository.credential
    except UnusableRemote as error:
        raise RepositoryUnavailable(str(error)) from error
    branch = repository.branch
    head = find_head(shell, project.folder, url, branch or "")
    if head is not None and (branch in (None, head) or repository.keeps_branch):
        return ProjectContents(branch=clean_text(head, MAX_BRANCH_LENGTH))
    if head is not None:
        before_switch(clean_text(head, MAX_BRANCH_LENGTH) or "no branch")
    private = _store_credential(shell, project, credential)
    if head is not None:
        script = _switch_script(project, repository, head, private)
        aim = f"checking out {branch} in the clone of {repository.name}"
        _run_git(shell, project, repository, script, aim)
        return ProjectContents(branch=branch)
    script = _clone_script(project, repository, url, private)
    result = _run_git(shell, project, repository, script, f"cloning {repository.name}")
    return replace(_contents(result), branch=branch)


def _run_git(shell: Shell, project: Project, repository: GitRepository, script: str, aim: str) -> CommandResult:
    result, timed_out = _run_timed(shell, script, project.clone_seconds)
    if timed_out:
        raise RepositoryCloneFailed(f"{aim} did not end within {project.clone_seconds:g} s")
    if result.exit_code != 0:
        hide_token = redacting(repository.secrets)
        # After any other error, another provider could have a stranger's repository of that name.
        failure = RepositoryUnavailable if NOT_FOUND.search(result.output) else RepositoryCloneFailed
        why = _tail(project.redact(hide_token(result.output))) or f"it ended with {result.exit_code}"
        raise failure(f"{aim} failed: {why}")
    return result


def _store_credential(shell: Shell, project: Project, credential: str) -> str:
    """Create a private folder with the credential, and remove the folders of interrupted attempts."""
    prefix = f"aw-git-{project.mark}-"
    command = with_variables(HIDE, prefix=prefix, name=prefix + secrets.token_hex(4))
    command += shlex.join(["hide", *project.private_roots])
    failure = WorkspaceSetupFailed("no private folder could be created for the credential")
    folder = _run(shell, command, failure, project.redact).stdout.strip()
    if credential:
        shell.upload(f"{folder}/credential", credential.encode())
    return folder


def _clone_script(project: Project, repository: GitRepository, url: str, private: str) -> str:
    parent, _, name = project.folder.rpartition("/")
    return with_variables(
        REMOTE + CLONE + LIST_SCRIPTS,
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


def _switch_script(project: Project, repository: GitRepository, head: str, private: str) -> str:
    return with_variables(
        REMOTE + SWITCH,
        private=private,
        project=project.folder,
        head=head,
        branch=repository.branch or "",
        depth="" if repository.full else "1",
        seconds=f"{project.clone_seconds:g}",
    )


def _contents(result: CommandResult) -> ProjectContents:
    lines = result.stdout.splitlines()
    return ProjectContents(setup_script="brings setup.sh" in lines, git_hook="brings pre-commit.sh" in lines)


def _run(shell: Shell, command: str, failure: WorkspaceSetupFailed, redact: Redact) -> CommandResult:
    result = shell.run_command(command)
    if result.exit_code != 0:
        raise type(failure)(f"{failure}: {_tail(redact(result.output))}")
    return result


def _run_timed(shell: Shell, command: str, seconds: float) -> tuple[CommandResult, bool]:
    """Run a command that ends itself after `seconds`. Return its result, and whether it ended for that reason."""
    began = time.monotonic()
    result = shell.run_command(command, timeout=seconds + GRACE_SECONDS)
    is_over = time.monotonic() >= began + seconds
    return result, result.exit_code in TIMED_OUT or (result.exit_code == KILLED and is_over)


def _tail(output: str) -> str:
    return "\n".join(output.strip().splitlines()[-MAX_LINES:])[-MAX_TAIL_LENGTH:]
