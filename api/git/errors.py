"""What may come of asking a git provider; `api.errors` gives each a status.

WorkspaceError
├── Unreached           it can't be reached, or what it says is no answer
├── TooSlow             it did not answer in time
└── Unavailable
    └── Busy            it wants to be asked later
NotFound
└── NotThere            it has no such thing, or does not show it with this token
"""

from shared.errors import NotFound, Unavailable, WorkspaceError


class Unreached(WorkspaceError):
    """The provider can't be reached, or what it says is no answer of its interface."""


class TooSlow(WorkspaceError):
    """The provider did not answer in time."""


class Busy(Unavailable):
    """The provider wants to be asked later; `retry_seconds` is when."""

    def __init__(self, provider: str, retry_seconds: int) -> None:
        super().__init__(f"{provider} answers no more questions with this token for now")
        self.retry_seconds = retry_seconds


class NotThere(NotFound):
    """The provider has no such thing, or does not show it."""

    def __init__(self, provider: str) -> None:
        WorkspaceError.__init__(self, f"{provider} has nothing there, or does not show it with the stored token")
