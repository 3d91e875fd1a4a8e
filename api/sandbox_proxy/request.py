"""A request on the sandbox path: its target and its keys."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

from starlette.types import Scope

from api.paths import SANDBOX_PATH_PREFIX
from api.request.authentication import read_bearer

# Other ids do not exist: they cost no query.
SANDBOX_ID = re.compile(r"([0-9a-f]{32})(?:-([1-9][0-9]{0,4}))?")
SESSION_KEY = "session_api_key"
# In the scope of a request to the client port.
BY_KEY = "agent_workspace.by_key"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class ProxyRequest:
    """One request, or one websocket."""

    # None: the sandbox with the session key.
    sandbox_id: str | None
    method: str
    # Path and query for the agent server: as the client sent them, without the prefix and without session keys.
    target: bytes
    headers: Headers
    scheme: str
    client: str | None
    # The sandbox's session key, from the header or else the query.
    session_key: str | None
    # A user's API key.
    api_key: str | None
    # A port of the sandbox other than its agent server's.
    port: int | None = None
    # The id of the user's API key, for a request that this service has authenticated before.
    key_id: str | None = None

    @property
    def path(self) -> str:
        """The beginning of this sandbox's path in the client's URLs; empty: the URLs have none."""
        if self.sandbox_id is None:
            return ""
        return f"{SANDBOX_PATH_PREFIX}/{self.sandbox_id}" + (f"-{self.port}" if self.port else "")

    @property
    def has_body(self) -> bool:
        length = self.header(b"content-length")
        return self.header(b"transfer-encoding") is not None or (length is not None and length != b"0")

    @property
    def has_key(self) -> bool:
        """Whether the request has a key, right or wrong."""
        return bool(self.session_key or self.api_key)

    @property
    def may_be_revoked(self) -> bool:
        """Whether the request came with a user's key. A sandbox's key ends with the sandbox."""
        return not self.session_key or self.key_id is not None

    @property
    def is_safe(self) -> bool:
        """Whether the method is safe (RFC 9110, section 9.2.1)."""
        return self.method in SAFE_METHODS

    @property
    def is_repeatable(self) -> bool:
        """Whether the proxy may send the request twice without executing a command twice."""
        return self.is_safe and not self.has_body

    def header(self, name: bytes) -> bytes | None:
        """Return the first header with a name, which is in lower case."""
        return next((value for key, value in self.headers if key == name), None)


def read_proxy_request(scope: Scope) -> ProxyRequest:
    """Read a request from an ASGI scope below the prefix."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    sandbox_id, _, rest = raw_path.removeprefix(SANDBOX_PATH_PREFIX.encode() + b"/").partition(b"/")
    query, key = _take_key(scope["query_string"])
    place = SANDBOX_ID.fullmatch(sandbox_id.decode("latin-1"))
    headers: Headers = scope["headers"]
    client: Any = scope.get("client")
    return ProxyRequest(
        sandbox_id=None if scope.get(BY_KEY) else place[1] if place else "",
        method=scope.get("method", "GET"),
        target=b"/" + rest + (b"?" + query if query else b""),
        headers=headers,
        scheme=scope["scheme"],
        client=client[0] if client else None,
        session_key=_header(headers, b"x-session-api-key") or key,
        api_key=read_bearer(_header(headers, b"authorization")),
        port=int(place[2]) if place and place[2] else None,
    )


def _take_key(query: bytes) -> tuple[bytes, str | None]:
    # The query without its session keys, and the first of these.
    if SESSION_KEY.encode() not in query:
        return query, None
    parts = [(part, *_split(part)) for part in query.split(b"&")]
    keys = [value for _, name, value in parts if name == SESSION_KEY]
    return b"&".join(part for part, name, _ in parts if name != SESSION_KEY), (keys[0] if keys else None)


def _split(part: bytes) -> tuple[str, str]:
    name, _, value = part.decode("latin-1").partition("=")
    return unquote_plus(name), unquote_plus(value)


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in headers if key == name), None)
