"""CORS: pages of the origins that the administrator lists may send requests, with cookies or keys; others may not."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
# How long a browser may cache a preflight response, seconds.
MAX_AGE = "600"
# Response headers that pages may read, besides the safelisted ones of the Fetch standard.
EXPOSED = (
    "Content-Disposition, Deprecation, ETag, Link, Operation-Settled, Preference-Applied, Retry-After, Wish-Settled, "
    "X-Request-ID"
)


class Cors:
    """Responds to preflight requests and adds CORS headers (Fetch standard), before authentication."""

    def __init__(self, app: ASGIApp, *, origins: frozenset[str]) -> None:
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond to a preflight request, or add the headers to another request's response."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("Origin", "")
        if origin not in self._origins:
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "Access-Control-Request-Method" in headers:
            await _preflight_response(origin, headers)(scope, receive, send)
        else:
            await self._app(scope, receive, _adding_headers(origin, send))


def _preflight_response(origin: str, request: Headers) -> Response:
    headers = _allow(origin) | {
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": request.get("Access-Control-Request-Headers", ""),
        "Access-Control-Max-Age": MAX_AGE,
    }
    return Response(status_code=204, headers=headers)


def _adding_headers(origin: str, send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            vary = headers.get("Vary", "")
            headers.update(_allow(origin) | {"Access-Control-Expose-Headers": EXPOSED})
            headers["Vary"] = ", ".join(filter(None, [vary, "Origin"]))
        await send(message)

    return send_with_headers


def _allow(origin: str) -> dict[str, str]:
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
        "Vary": "Origin",
    }
