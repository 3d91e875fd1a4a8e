"""Paths with a slash too many at their end: they lead to the operation without it, on whatever host was asked.

Starlette's own redirect names the host that the request names, and a scheme that a proxy may have changed.
"""

from collections.abc import Sequence
from urllib.parse import quote

from starlette.responses import RedirectResponse
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send


class SlashRedirect:
    """An ASGI application for what no route takes."""

    def __init__(self, routes: Sequence[BaseRoute], otherwise: ASGIApp) -> None:
        """Lead to these routes; `otherwise` answers what is none of theirs even so."""
        self._routes = routes
        self._otherwise = otherwise

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = str(scope["path"])
        shorter = path.rstrip("/")
        # Two slashes at the beginning of a Location would be followed by a host.
        is_ours = scope["type"] == "http" and shorter != path and not path.startswith("//")
        if is_ours and any(route.matches({**scope, "path": shorter})[0] != Match.NONE for route in self._routes):
            await _redirect(shorter, scope)(scope, receive, send)
        else:
            await self._otherwise(scope, receive, send)


def _redirect(path: str, scope: Scope) -> RedirectResponse:
    query = scope["query_string"].decode("latin-1")
    return RedirectResponse(quote(path) + (f"?{query}" if query else ""))
