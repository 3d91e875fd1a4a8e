"""The client port: a sandbox's agent server at a URL without a path, for clients that have the sandbox's key.

The OpenHands SDK for Python builds URLs from an agent server's host and port alone (decision 54). So URLs of this port
do not name the sandbox: the key selects it. The port serves nothing else, and accepts no cookie.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from api.paths import SANDBOX_PATH_PREFIX
from api.sandbox_proxy.request import BY_KEY, SESSION_KEY

HEALTH = "/health"
PREFIX = f"{SANDBOX_PATH_PREFIX}/by-key"


class KeyListener:
    """Passes requests that came to the client port on to the sandbox path, and all others unchanged.

    A request for this service's own health at the client port stays unchanged, too: the SDK sends it before it uses its
    key.
    """

    def __init__(self, app: ASGIApp, *, port: int) -> None:
        self._app, self._port = app, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _is_for_sandbox(scope, self._port):
            _move_to_sandbox_path(scope)
        await self._app(scope, receive, send)


def _is_for_sandbox(scope: Scope, port: int) -> bool:
    if scope["type"] not in ("http", "websocket") or (scope.get("server") or ("", 0))[1] != port:
        return False
    return scope["type"] == "websocket" or scope["path"] != HEALTH or _has_key(scope)


def _move_to_sandbox_path(scope: Scope) -> None:
    raw_path: bytes = scope.get("raw_path") or scope["path"].encode()
    headers = [(name, value) for name, value in scope["headers"] if name != b"cookie"]
    moved = {"path": PREFIX + scope["path"], "raw_path": PREFIX.encode() + raw_path, "headers": headers, BY_KEY: True}
    scope.update(moved)


def _has_key(scope: Scope) -> bool:
    names = {name for name, _ in scope["headers"]}
    return b"x-session-api-key" in names or SESSION_KEY.encode() in scope["query_string"]
