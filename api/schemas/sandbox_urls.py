"""The URLs of sandboxes that callers are shown (decision 54). None of them leads past this service."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from api.paths import SANDBOX_PATH_PREFIX
from shared.sandboxes.status import AGENT_SERVER


class SandboxUrls(NamedTuple):
    """The URLs for one caller. Browsers reach sandboxes below this service's origin, and programs by the client port.

    A tuple, because it is part of the key of each cached item of a list: a tuple is hashed in C.

    Args:
        origin: this service's, as the caller sees it.
        client_url: the URL of the client port, where the key selects the sandbox; None: only paths are shown.
    """

    origin: str
    client_url: str | None = None

    def agent_server(self, sandbox_id: str) -> str:
        """Return the URL of a sandbox's agent server, without a trailing slash."""
        return self.client_url or f"{self.origin}{SANDBOX_PATH_PREFIX}/{sandbox_id}"

    def exposed(self, sandbox_id: str, url: Mapping[str, Any]) -> str:
        """Return the URL to show instead of one of the row's."""
        if url["name"] == AGENT_SERVER:
            return self.agent_server(sandbox_id)
        return f"{self.origin}{SANDBOX_PATH_PREFIX}/{sandbox_id}-{url['port']}"
