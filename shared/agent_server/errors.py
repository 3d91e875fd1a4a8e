"""Errors of requests to an agent server, for the API and the worker.

AgentServerError
├── AgentServerUnreachable   no response, or a temporary error (5xx, 429): retry
│   ├── DoorUnavailable          the node's door does not respond, or rejects the request
│   └── IncompleteResponse       the response began, and its connection was closed
├── AgentServerRefused       the server rejects the request, and will reject it again
└── WrongServer              not this sandbox's agent server, or one that admits every caller
    └── ResponseTooLarge         the response is larger than the reader's limit

Their texts are safe to show: the server's own text passes through `redacting`, after the request's values that the
server quotes were removed.
"""

from typing import ClassVar

from shared.errors import TooLarge, WorkspaceError


class AgentServerError(WorkspaceError):
    """Base class of the agent server's errors; `reason` is for machines, `str(error)` for people."""

    reason: ClassVar[str]


class AgentServerUnreachable(AgentServerError):
    """No response, or a temporary error. The server may have executed the request."""

    reason = "agent_server_unreachable"


class DoorUnavailable(AgentServerUnreachable):
    """The node's door does not respond, or rejects the request: the agent server's state is unknown."""


class IncompleteResponse(AgentServerUnreachable):
    """The server's response began, but is incomplete."""


class AgentServerRefused(AgentServerError):
    """The server rejected the request because of its content."""

    reason = "agent_server_refused"

    def __init__(self, aim: str, status: int, detail: str) -> None:
        super().__init__(f"the agent server refused to {aim}: {status} {detail}".rstrip())
        self.status = status


class WrongServer(AgentServerError):
    """The server at the address is not this sandbox's agent server with this sandbox's key."""

    reason = "wrong_agent_server"


class NoKeyRequired(WrongServer):
    """The agent server admits every caller: it has no configuration, or its image does not read it."""


class ResponseTooLarge(WrongServer, TooLarge):
    """The response is larger, or costs more to read, than the limits of `shared.agent_server.limits`.

    `beginning` is the first part of its content.
    """

    def __init__(self, problem: str, beginning: bytes = b"") -> None:
        super().__init__(problem)
        self.beginning = beginning
