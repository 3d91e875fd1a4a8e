"""What may come between a request and its sandbox; `api.errors` gives each a status.

WorkspaceError
├── Unanswered    the agent server can't be reached, or hangs up
│   └── BrokenOff     it hangs up in the midst of its answer
├── Refused       the agent server says what is wrong with a client's request
├── Overdue       the agent server answers, and what it waits for does not
├── StillAsleep   the sandbox did not run in time
└── NotNow        too many wait already, the sandbox was paused again, or this process is to end
"""

from shared.errors import WorkspaceError


class Unanswered(WorkspaceError):
    """Nothing answers where the sandbox's agent server should be, or it hangs up before it answers."""


class BrokenOff(Unanswered):
    """The agent server's answer began, and did not come to its end."""


class Refused(WorkspaceError):
    """The agent server refuses what a client has asked it for; `status` is the agent server's own, a 4xx."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Overdue(WorkspaceError):
    """The agent server has waited in vain for the agent's own program."""


class StillAsleep(WorkspaceError):
    """The sandbox did not run within `AW_WAKE_SECONDS`. What was wished for it holds."""


class NotNow(WorkspaceError):
    """The request can't be held until its sandbox runs; another try may fare better."""
