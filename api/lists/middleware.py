"""Middleware that serves unchanged lists from the response cache, before routing."""

from collections.abc import Collection

from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.lists.response_cache import ResponseCache
from api.lists.route import cache_key, respond
from api.middleware.request_body import has_body
from api.request.authentication import authenticate
from shared.db.database import StoreError
from shared.errors import WorkspaceError
from shared.observability import failpoints


class ResponseCacheMiddleware:
    """Serves a cached list before the other layers of the application run."""

    def __init__(self, app: ASGIApp, *, paths: Collection[str], cache: ResponseCache) -> None:
        """Wrap `app`; the routes at `paths` are `ListRoute`s, which fill the cache."""
        self._app, self._paths, self._cache = app, paths, cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the cached response, or pass the request on."""
        is_plain = scope["type"] == "http" and scope["method"] == "GET" and scope["path"] in self._paths
        response = await self._find(Request(scope)) if is_plain and not has_body(scope) else None
        await (response or self._app)(scope, receive, send)

    async def _find(self, request: Request) -> Response | None:
        failpoints.begin(f"{request.method} {request.scope['path']}")
        try:
            request.state.user = await authenticate(request)
        except (WorkspaceError, StoreError):
            return None  # the route meets the same error and reports it
        response = self._cache.find(cache_key(request), request.state.user.list_version)
        return response and respond(request, response)
