"""A conversation's project folder, and the errors of its setup.

WorkspaceSetupFailed            the folder could not be created, or git did not run
├── RepositoryCloneFailed       the end of git's output says why
│   └── RepositoryUnavailable   another provider may have the repository
├── SetupScriptFailed           .openhands/setup.sh failed
└── GitHooksFailed              the pre-commit hook could not be installed
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from shared.agent_server.responses import CommandResult
from shared.errors import WorkspaceError
from shared.redaction import Redact
from worker.workspace.git_remotes import GitRepository
from worker.workspace.shell_scripts import Shell

CLONE_SECONDS = 120.0
# Seconds that the shell may take after `timeout` has sent its signal.
GRACE_SECONDS = 15.0
PRIVATE_ROOTS = ("/dev/shm", "/tmp")  # noqa: S108 (a folder of mode 0700 is created in it)
MAX_LINES = 20
MAX_TAIL_LENGTH = 4000
# Exit codes after a timeout: of coreutils' `timeout`, and of the agent server.
TIMED_OUT = (124, 137, -1)


class WorkspaceSetupFailed(WorkspaceError):
    """The root of the tree; `reason` is for machines, `str(error)` is for people and has no secrets."""

    reason: ClassVar[str] = "workspace_setup_failed"


class RepositoryCloneFailed(WorkspaceSetupFailed):
    """The repository could not be cloned, or its branch could not be checked out."""

    reason = "clone_failed"


class RepositoryUnavailable(RepositoryCloneFailed):
    """git could not clone the repository from this provider."""


class SetupScriptFailed(WorkspaceSetupFailed):
    """The project's setup script failed or exceeded its timeout; `tail` is the end of its output."""

    reason = "setup_script_failed"

    def __init__(self, problem: str, exit_code: int, tail: str) -> None:
        super().__init__(f".openhands/setup.sh {problem}: {tail}" if tail else f".openhands/setup.sh {problem}")
        self.exit_code, self.tail = exit_code, tail


class GitHooksFailed(WorkspaceSetupFailed):
    """The project's .openhands/pre-commit.sh could not be installed as a git hook."""

    reason = "git_hooks_failed"


@dataclass(frozen=True)
class Project:
    """The project of a conversation, and its folder.

    Args:
        working_dir: the project's folder, or the parent folder of a clone.
        alternatives: the same repository at other providers, which are tried in order if `repository` is unavailable.
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
    def mark(self) -> str:
        """The conversation's part of the names of temporary files."""
        return self.conversation_id.replace("-", "")


@dataclass(frozen=True)
class ProjectContents:
    """The scripts that a project has, and the branch or tag that it is on; the defaults apply until these are read."""

    setup_script: bool = True
    git_hook: bool = True
    branch: str | None = field(default=None, compare=False)


def read_contents(result: CommandResult) -> ProjectContents:
    """The contents that `LIST_SCRIPTS` has printed."""
    lines = result.stdout.splitlines()
    return ProjectContents(setup_script="brings setup.sh" in lines, git_hook="brings pre-commit.sh" in lines)


def run(shell: Shell, command: str, failure: WorkspaceSetupFailed, redact: Redact) -> CommandResult:
    """Run a command.

    Raises:
        WorkspaceSetupFailed: `failure`, with the end of the output of a command that failed.
    """
    result = shell.run_command(command)
    if result.exit_code != 0:
        raise type(failure)(f"{failure}: {tail(redact(result.output))}")
    return result


def is_timeout(result: CommandResult) -> bool:
    """Whether the command was ended at its timeout."""
    return result.exit_code in TIMED_OUT


def tail(output: str) -> str:
    """The end of a command's output, for an error."""
    return "\n".join(output.strip().splitlines()[-MAX_LINES:])[-MAX_TAIL_LENGTH:]
