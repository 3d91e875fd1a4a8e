"""A node's door: the proxy by which the API and the workers reach the agent servers of that node (decision 54).

A sandbox's URL is the door's URL with the container's address and port as its path:
`http://127.0.0.1:3001/10.0.0.5/8000`. The door forwards a request if its token is right. A header marks the error
responses that come from the door itself.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ssl import SSLContext, create_default_context
from urllib.parse import urlsplit

import httpx

from shared.agent_server.responses import no_trust_context
from shared.crypto import Vault
from shared.errors import Invalid

# The purpose for which the token is derived from a secret key.
PURPOSE = "door token"
TOKEN_HEADER = "X-Agent-Workspace-Token"  # noqa: S105 - a name
# In each response from the door itself; its value is the status. The door removes it from agent servers' responses.
ERROR_HEADER = "X-Agent-Workspace-Door"
# The path that a door forwards to the API instead of a sandbox.
API_CHECK = "/alive"
CONTAINER_PATH = re.compile(r"/(\d{1,3}(?:\.\d{1,3}){3})/(\d{1,5})")


class DoorError(httpx.ConnectError):
    """The door does not respond, or refuses the request: the agent server's state is unknown."""


@dataclass(frozen=True)
class DoorAccess:
    """What a client of doors needs: the token, and the certificate authority of doors with TLS, if any."""

    token: str
    authority: str = ""

    @property
    def headers(self) -> dict[str, str]:
        return {TOKEN_HEADER: self.token}

    def tls(self) -> SSLContext:
        """Return a context that trusts the certificate authority alone.

        Raises:
            Invalid: its file can't be read, or has no certificate.
        """
        if not self.authority:
            return no_trust_context()
        try:
            return create_default_context(cafile=self.authority)
        except OSError as error:
            raise Invalid(f"AW_DOOR_CA, {self.authority}, can't be used: {error.strerror}") from None


def open_access(vault: Vault, authority: str = "") -> DoorAccess:
    """Return what a process with this vault needs to use doors."""
    return DoorAccess(vault.derive(PURPOSE), authority)


def is_door_path(path: str) -> bool:
    """Whether the path of a URL leads through a door."""
    return CONTAINER_PATH.match(path) is not None


def split_url(url: str) -> tuple[str, str, str]:
    """Return a sandbox URL's origin, the path below it, and the `Host` that the sandbox sees."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    match = CONTAINER_PATH.fullmatch(path)
    return f"{parts.scheme}://{parts.netloc}", path, f"{match[1]}:{match[2]}" if match else parts.netloc


def error_in(headers: Mapping[str, str]) -> httpx.TransportError | None:
    """Return the error that a response from the door itself stands for; None: an agent server has responded."""
    status = headers.get(ERROR_HEADER)
    if status is None:
        return None
    match status:
        case "503":
            return httpx.ConnectError("the door can't connect to the agent server")
        case "504":
            return httpx.ReadTimeout("the agent server does not respond to the door")
        case "403":
            return DoorError("the door refuses the request: its secret key, or its network, is another one")
    return httpx.RemoteProtocolError(f"the door answers {status}")
