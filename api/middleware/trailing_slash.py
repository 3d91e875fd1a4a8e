"""Redirects of paths with trailing slashes to the path without them, on the same host.

Starlette's own redirect contains the `Host` of the request, and a scheme that a proxy may have changed.
"""

from collections.abc import Sequence
from urllib.parse import quote

from starlette.responses import RedirectResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send


class SlashRedirect:
    """An ASGI application for paths that no route matches."""

    def __init__(self, routes: Sequence[BaseRoute], otherwise: ASGIApp) -> None:
        """Redirect to these routes; `otherwise` responds if the shorter path matches none either."""
        self._routes = routes
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope["path"])
        shorter = path.rstrip("/")
        # In a Location, text after two leading slashes is a host.
        is_candidate = scope["type"] == "http" and shorter != path and not path.startswith("//")
        if is_candidate and any(route.matches({**scope, "path": shorter})[0] != Match.NONE for route in self._routes):
            await _redirect(shorter, scope)(scope, receive, send)
        else:
            await self._otherwise(scope, receive, send)


def _redirect(path: str, scope: Scope) -> RedirectResponse:
    query = scope["query_string"].decode("latin-1")
    return RedirectResponse(quote(path) + (f"?{query}" if query else ""))
