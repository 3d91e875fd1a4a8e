"""Serve an unchanged list from the cache, before a route is looked for."""

from collections.abc import Mapping

from fastapi import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from api.lists.route import ListRoute, answer_from_cache
from api.middleware.request_body import has_body


class ListCacheMiddleware:
    """Stands before all that the application does for a request, and answers it if the same was answered before."""

    def __init__(self, app: ASGIApp, *, lists: Mapping[str, ListRoute]) -> None:
        """Stand before `app`, which has these lists, each at its path."""
        self._app = app
        self._lists = lists

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass on."""
        is_plain = scope["type"] == "http" and scope["method"] == "GET" and not has_body(scope)
        route = self._lists.get(scope["path"]) if is_plain else None
        answer = None if route is None else await answer_from_cache(Request(scope), route)
        await (answer or self._app)(scope, receive, send)
