"""What goes wrong between a worker and an agent server.

AgentServerError
├── AgentServerUnreachable   no answer, or "not now" (5xx, 429): worth another try
├── AgentServerRefused       it understood and said no: the same request will be refused again
└── WrongServer              not this sandbox's agent server, or one that lets anybody in

Their texts are safe to show: the server's own words pass through `redacting`, and the values it quotes from a request
are cut out first.
"""

from typing import ClassVar

from shared.errors import WorkspaceError


class AgentServerError(WorkspaceError):
    """The root of the tree; `reason` is for machines, `str(error)` for people."""

    reason: ClassVar[str]


class AgentServerUnreachable(AgentServerError):
    """Nothing answered, or the answer was that it can't now. The request may have been carried out."""

    reason = "agent_server_unreachable"


class AgentServerRefused(AgentServerError):
    """The server refused the request for what it says."""

    reason = "agent_server_refused"

    def __init__(self, aim: str, status: int, detail: str) -> None:
        super().__init__(f"the agent server would not {aim}: {status} {detail}".rstrip())
        self.status = status


class WrongServer(AgentServerError):
    """Something answers at the address, but not this sandbox's agent server behind this sandbox's key."""

    reason = "wrong_agent_server"
