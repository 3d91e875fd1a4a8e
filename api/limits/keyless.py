"""The rate limits of operations that need no key: pages, logins, device logins."""

from collections.abc import Collection

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.errors.handlers import error_response
from api.limits.addresses import client_address
from api.limits.process import ProcessLimits
from api.limits.rates import RateLimit, RateState
from api.paths import SANDBOX_PATH_PREFIX
from api.schemas.v1.device_login import slow_down

# The routes below these prefixes check a key, and count wrong ones.
WITH_KEY = ("/api/", f"{SANDBOX_PATH_PREFIX}/")
# Load balancers request these often, and the responses are cheap.
EXEMPT = ("/alive", "/ready", "/health", "/server_info")


class KeylessLimits:
    """Rejects requests above the limits with a 429, and adds the sender's remaining quota to each response."""

    def __init__(self, app: ASGIApp, *, limits: ProcessLimits, keyless_paths: Collection[str]) -> None:
        """Wrap `app`; `keyless_paths` are those paths below /api that need no key."""
        self._app, self._limits, self._keyless_paths = app, limits, keyless_paths
        self._special = {
            ("POST", "/login"): limits.logins,
            ("POST", "/oauth/device/verify"): limits.logins,
            ("POST", "/oauth/device/authorize"): limits.device_starts,
            ("POST", "/oauth/device/token"): limits.device_polls,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, unless its sender has reached a limit."""
        limit = self._find_limit(scope)
        standing = limit.take(client_address(scope)) if limit else None
        if limit is None or standing is None:
            await self._app(scope, receive, send)
        elif standing.retry_seconds:
            headers, why = {**standing.headers, "Connection": "close"}, limit.explain()
            fields = slow_down(why, standing.retry_seconds) if limit is self._limits.device_polls else {}
            await error_response(429, why, headers, fields=fields)(scope, receive, send)
        else:
            await self._app(scope, receive, _adding_headers(standing, send))

    def _find_limit(self, scope: Scope) -> RateLimit | None:
        # A route also matches its path with a newline behind it, as `$` in a regular expression does.
        path = scope.get("path", "").removesuffix("\n")
        if path.startswith(WITH_KEY) and path not in self._keyless_paths:
            return None
        if scope["type"] != "http" or path in EXEMPT:
            return None
        return self._special.get((scope["method"], path.rstrip("/")), self._limits.keyless)


def _adding_headers(standing: RateState, send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(standing.headers)
        await send(message)

    return send_with_headers
