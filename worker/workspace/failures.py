"""The errors of a project's setup.

WorkspaceSetupFailed            the folder could not be created, or git did not run
├── RepositoryCloneFailed       the end of git's output says why
│   └── RepositoryUnavailable   another provider may have the repository
├── SetupScriptFailed           .openhands/setup.sh failed
└── GitHooksFailed              the pre-commit hook could not be installed
"""

from typing import ClassVar

from shared.errors import WorkspaceError


class WorkspaceSetupFailed(WorkspaceError):
    """The root of the tree; `reason` is for machines, `str(error)` is for people and has no secrets."""

    reason: ClassVar[str] = "workspace_setup_failed"


class RepositoryCloneFailed(WorkspaceSetupFailed):
    """The repository could not be cloned, or its branch could not be checked out."""

    reason = "clone_failed"


class RepositoryUnavailable(RepositoryCloneFailed):
    """This provider has no such repository, or none that the token may read."""


class SetupScriptFailed(WorkspaceSetupFailed):
    """The project's setup script failed or exceeded its timeout; `tail` is the end of its output."""

    reason = "setup_script_failed"

    def __init__(self, problem: str, exit_code: int, tail: str) -> None:
        super().__init__(f".openhands/setup.sh {problem}: {tail}" if tail else f".openhands/setup.sh {problem}")
        self.exit_code, self.tail = exit_code, tail


class GitHooksFailed(WorkspaceSetupFailed):
    """The project's .openhands/pre-commit.sh could not be installed as a git hook."""

    reason = "git_hooks_failed"
