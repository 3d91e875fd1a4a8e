"""Errors on the way from a request to its sandbox or git provider; `api.errors.handlers` maps each to a status.

The errors of agent servers themselves are in `shared.agent_server.errors`.

WorkspaceError
├── UpstreamRejected        the agent server rejects a client's request
├── GatewayTimeout          the agent server responds, but what it waits for does not
├── WakeTimeout             the sandbox was not running in time
├── TemporarilyUnavailable  too many requests wait, the sandbox was paused again, or this process is shutting down
├── UpstreamUnreachable     the git provider is unreachable, or its response is invalid
├── UpstreamTimeout         the git provider does not respond in time
├── Unavailable
│   └── UpstreamRateLimited     the git provider's rate limit is reached
└── NotFound
    └── UpstreamNotFound        the git provider has no such resource
"""

from shared.errors import NotFound, Unavailable, WorkspaceError


class UpstreamRejected(WorkspaceError):
    """The agent server rejects a client's request; `status` is the 4xx for the client."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class GatewayTimeout(WorkspaceError):
    """The agent server timed out while it waited for the agent's own program."""


class WakeTimeout(WorkspaceError):
    """The sandbox was not running within `AW_WAKE_SECONDS`. Its desired state stays RUNNING."""


class TemporarilyUnavailable(WorkspaceError):
    """The request cannot wait for its sandbox now; a retry may succeed."""


class UpstreamUnreachable(WorkspaceError):
    """The git provider is unreachable, or its response does not match its interface."""


class UpstreamTimeout(WorkspaceError):
    """The git provider did not respond in time."""


class UpstreamRateLimited(Unavailable):
    """The git provider's rate limit is reached; retry after `retry_seconds`."""

    def __init__(self, provider: str, retry_seconds: int) -> None:
        super().__init__(f"{provider} accepts no more requests with this token for now")
        self.retry_seconds = retry_seconds


class UpstreamNotFound(NotFound):
    """The git provider has no such resource, or hides it from the stored token."""

    def __init__(self, provider: str) -> None:
        WorkspaceError.__init__(self, f"{provider} has no such resource, or hides it from the stored token")
