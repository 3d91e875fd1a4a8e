"""What may come between a request and its sandbox; `api.errors.handlers` gives each a status.

WorkspaceError
├── Unanswered    the agent server can't be reached, or hangs up
│   └── BrokenOff     it hangs up in the midst of its answer
├── Refused       the agent server says what is wrong with a client's request
├── Overdue       the agent server answers, and what it waits for does not
├── StillAsleep   the sandbox did not run in time
└── NotNow        too many wait already, the sandbox was paused again, or this process is to end
"""

from shared.errors import NotFound, Unavailable, WorkspaceError


class BadGateway(WorkspaceError):
    """Nothing answers where the sandbox's agent server should be, or it hangs up before it answers."""


class BrokenOff(BadGateway):
    """The agent server's answer began, and did not come to its end."""


class UpstreamRefused(WorkspaceError):
    """The agent server refuses what a client has asked it for; `status` is the agent server's own, a 4xx."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class GatewayTimeout(WorkspaceError):
    """The agent server has waited in vain for the agent's own program."""


class WakeTimeout(WorkspaceError):
    """The sandbox did not run within `AW_WAKE_SECONDS`. What was wished for it holds."""


class TemporarilyUnavailable(WorkspaceError):
    """The request can't be held until its sandbox runs; another try may fare better."""


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
