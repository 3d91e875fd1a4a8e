"""A request to a sandbox, as it came: where to, and with which key."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote_plus

from starlette.types import Scope

from api.paths import SANDBOX_PATH_PREFIX
from api.request.bearer import read_bearer

# Whatever else is asked for does not exist, and no store is asked.
SANDBOX_ID = re.compile(r"[0-9a-f]{32}")
SESSION_KEY = "session_api_key"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class ProxyRequest:
    """One request, or one websocket."""

    sandbox_id: str
    method: str
    # Path and query as the agent server is to see them: as they came, without the prefix and without a key.
    target: bytes
    headers: Headers
    scheme: str
    client: str | None
    # The sandbox's own key, from the header or else the query.
    session_key: str | None
    # A user's.
    api_key: str | None

    @property
    def path(self) -> str:
        """Where this sandbox's path begins, as the client sees it."""
        return f"{SANDBOX_PATH_PREFIX}/{self.sandbox_id}"

    @property
    def has_body(self) -> bool:
        """Whether a body follows."""
        length = self.header(b"content-length")
        return self.header(b"transfer-encoding") is not None or (length is not None and length != b"0")

    @property
    def has_key(self) -> bool:
        """Whether a key came with it; it may still be wrong."""
        return bool(self.session_key or self.api_key)

    @property
    def is_safe(self) -> bool:
        """Whether it is to change nothing (RFC 9110, section 9.2.1)."""
        return self.method in SAFE_METHODS

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be sent twice without being carried out twice."""
        return self.is_safe and not self.has_body

    def header(self, name: bytes) -> bytes | None:
        """The first header of that name, which is in lower case."""
        return next((value for key, value in self.headers if key == name), None)

    def with_session_key(self, key: str) -> "ProxyRequest":
        """The same, with the key that came later."""
        return replace(self, session_key=key)


def read_proxy_request(scope: Scope) -> ProxyRequest:
    """What an ASGI scope below the prefix says."""
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    sandbox_id, _, rest = raw_path.removeprefix(SANDBOX_PATH_PREFIX.encode() + b"/").partition(b"/")
    query, key = _take_key(scope["query_string"])
    text = sandbox_id.decode("latin-1")
    headers: Headers = scope["headers"]
    client: Any = scope.get("client")
    return ProxyRequest(
        sandbox_id=text if SANDBOX_ID.fullmatch(text) else "",
        method=scope.get("method", "GET"),
        target=b"/" + rest + (b"?" + query if query else b""),
        headers=headers,
        scheme=scope["scheme"],
        client=client[0] if client else None,
        session_key=_header(headers, b"x-session-api-key") or key,
        api_key=read_bearer(_header(headers, b"authorization")),
    )


def _take_key(query: bytes) -> tuple[bytes, str | None]:
    """The query without its session keys, and the first of these."""
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
