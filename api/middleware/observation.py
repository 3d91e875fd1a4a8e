"""The id of each request, and what it took: for logs, metrics and traces."""

import os
from collections.abc import Collection
from time import perf_counter

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.middleware.request_body import WEBHOOKS
from api.paths import SANDBOX_PATH_PREFIX
from shared.observability import correlation, metrics

HEADER = correlation.REQUEST_ID_HEADER.lower().encode()
METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"))
# Paths without a route (the web UI's files, and what does not exist), and methods that no route has.
OTHER = "other"


class RequestObservation:
    """Gives each request an id, which its response names, and measures the time until its response begins.

    It wraps the whole application: it sees what other middleware rejects, and internal errors.
    """

    def __init__(self, app: ASGIApp, *, fixed_paths: Collection[str]) -> None:
        """Wrap `app`. Responses at `fixed_paths` may be cached, before a route is found: the path is its own name."""
        self._app, self._fixed_paths = app, fixed_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Observe one request. A websocket gets an id, too, but no response is measured."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        chosen = _choose_id(scope)
        correlation.request_id.set(chosen)
        began = perf_counter()

        async def send_observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                # An agent server's own id is not this service's.
                kept = [header for header in message.get("headers", ()) if header[0] != HEADER]
                message["headers"] = [*kept, (HEADER, chosen.encode())]
                labels = _method(scope), self.route(scope)
                metrics.count_response(labels, message["status"], perf_counter() - began)
            await send(message)

        if correlation.tracer is None:
            await self._app(scope, receive, send_observed)
        else:
            await self._trace(scope, receive, send_observed)

    async def _trace(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A sandbox must not add spans to traces of others.
        headers = {} if scope["path"].startswith(WEBHOOKS) else dict(Headers(scope=scope))
        method = _method(scope)
        with correlation.span(method, "server", headers, request_id=correlation.request_id.get()) as span:
            try:
                await self._app(scope, receive, send)
            finally:
                span.update_name(f"{method} {self.route(scope)}")

    def route(self, scope: Scope) -> str:
        """Return the template of the path: no id, and no text of a user, is in it."""
        route = scope.get("fastapi", {}).get("effective_route_context")
        path: str = scope["path"]
        if route is not None:
            return str(route.path)
        if path.startswith(f"{SANDBOX_PATH_PREFIX}/"):
            return f"{SANDBOX_PATH_PREFIX}/{{sandbox_id}}"
        return path if path in self._fixed_paths else OTHER


def _method(scope: Scope) -> str:
    method: str = scope.get("method", "GET")
    return method if method in METHODS else OTHER


def _choose_id(scope: Scope) -> str:
    """Return the client's id if it is well-formed, else a new one."""
    for name, value in scope["headers"]:
        if name == HEADER and correlation.is_well_formed(text := value.decode("latin-1")):
            return str(text)
    return os.urandom(16).hex()
