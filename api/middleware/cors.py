"""Pages of other origins: those that the administrator lists may ask, with cookies or keys, and no others."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
# How long a browser may remember what it was allowed, seconds.
REMEMBERED = "600"
# Beyond what browsers show to pages anyway.
SHOWN = "Content-Disposition, Deprecation, Link, Operation-Settled, Preference-Applied, Retry-After, Wish-Settled"


class Cors:
    """Tells browsers which pages may ask (the Fetch standard), before anybody looks for a key."""

    def __init__(self, app: ASGIApp, *, origins: frozenset[str]) -> None:
        """Let pages of these origins ask `app`."""
        self._app = app
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what a browser asks first, or say with the answer who may read it."""
        headers = Headers(scope=scope) if scope["type"] == "http" else Headers()
        origin = headers.get("Origin", "")
        if origin not in self._origins:
            await self._app(scope, receive, send)
        elif scope["method"] == "OPTIONS" and "Access-Control-Request-Method" in headers:
            await _allow(origin, headers)(scope, receive, send)
        else:
            await self._app(scope, receive, _saying(origin, send))


def _allow(origin: str, asked: Headers) -> Response:
    said = _for(origin) | {
        "Access-Control-Allow-Methods": METHODS,
        "Access-Control-Allow-Headers": asked.get("Access-Control-Request-Headers", ""),
        "Access-Control-Max-Age": REMEMBERED,
    }
    return Response(status_code=204, headers=said)


def _saying(origin: str, send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            vary = headers.get("Vary", "")
            headers.update(_for(origin) | {"Access-Control-Expose-Headers": SHOWN})
            headers["Vary"] = ", ".join(filter(None, [vary, "Origin"]))
        await send(message)

    return send_with_headers


def _for(origin: str) -> dict[str, str]:
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
        "Vary": "Origin",
    }
