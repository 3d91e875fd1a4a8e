"""Middleware that serves unchanged lists from the cache, before routing."""

from collections.abc import Mapping

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from api.lists.route import ListRoute, response_from_cache
from api.middleware.request_body import has_body


class ListCacheMiddleware:
    """Serves a cached list before the other layers of the application run."""

    def __init__(self, app: ASGIApp, *, lists: Mapping[str, ListRoute]) -> None:
        """Wrap `app`; `lists` maps the paths of its list routes to them."""
        self._app = app
        self._lists = lists

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the cached response, or pass the request on."""
        is_plain = scope["type"] == "http" and scope["method"] == "GET" and not has_body(scope)
        route = self._lists.get(scope["path"]) if is_plain else None
        response = None if route is None else await response_from_cache(Request(scope), route)
        await (response or self._app)(scope, receive, send)
