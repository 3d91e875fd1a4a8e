"""Headers of every response: the request's id, and `Cache-Control: no-store` unless its route allows caching.

This layer also measures requests for metrics and traces, serves HEAD, and makes cookies harmless.
"""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from random import getrandbits
from time import perf_counter

from prometheus_client import Counter, Histogram
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.middleware.request_body import BODY_HEADERS, WEBHOOKS
from api.paths import DOCS_ASSETS, SANDBOX_PATH_PREFIX
from shared.observability import correlation, metrics

REQUEST_ID = correlation.REQUEST_ID_HEADER.lower().encode()
CACHE_CONTROL, COOKIE = b"cache-control", b"cookie"
# A response with this header has waited until its command had completed (`?wait`).
SETTLED = b"operation-settled"
# Public files.
CACHEABLE = f"{DOCS_ASSETS}/"
# Agent servers respond to HEAD themselves.
OF_SANDBOXES = f"{SANDBOX_PATH_PREFIX}/"
METHODS = frozenset(("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT"))
# The label of paths without a route (the web UI's files, and unknown paths), and of methods that no route has.
OTHER = "other"
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

SECONDS = Histogram(
    "agent_workspace_http_request_seconds",
    "Time from a request until its response begins",
    ("method", "route"),
    buckets=BUCKETS,
    registry=metrics.OWN,
)
RESPONSES = Counter(
    "agent_workspace_http_responses",
    "Responses by the class of their status",
    ("method", "route", "status"),
    registry=metrics.OWN,
)


class ResponseRules:
    """Names the request's id in each response, and measures the time until the response begins.

    It adds `Cache-Control: no-store` to each response that has no such header: responses contain keys, and what they
    show changes at any time.

    HEAD is a GET whose response has no body (RFC 9110, 9.3.2). Routes need no code for it.

    It wraps the whole application: it sees what other middleware rejects, and internal errors.
    """

    def __init__(self, app: ASGIApp, *, fixed_paths: Collection[str]) -> None:
        """Wrap `app`. A cache may respond at `fixed_paths` before a route is found: each path is its own label."""
        self._app, self._fixed_paths = app, fixed_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request. A websocket gets an id, too, but no response is measured."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        names = {name for name, _ in scope["headers"]}
        if COOKIE in names:
            _simplify_cookies(scope)
        request_id = (_find_id(scope) if REQUEST_ID in names else None) or _new_id()
        correlation.request_id.set(request_id)
        send = self._completing(scope, send, request_id)
        is_head = scope.get("method") == "HEAD" and not scope["path"].startswith(OF_SANDBOXES)
        serve = self._head if is_head else self._app
        if correlation.tracer is None:
            await serve(scope, receive, send)
        else:
            await self._trace(serve, scope, receive, send)

    def _completing(self, scope: Scope, send: Send, request_id: str) -> Send:
        began = perf_counter()
        adds_cache_control = not scope["path"].startswith(CACHEABLE)

        async def send_completed(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = list(message.get("headers", ()))
                names = {name for name, _ in headers}
                if REQUEST_ID in names:  # of an agent server's response: it is not this service's
                    headers = [header for header in headers if header[0] != REQUEST_ID]
                headers.append((REQUEST_ID, request_id.encode()))
                if adds_cache_control and CACHE_CONTROL not in names:
                    headers.append((CACHE_CONTROL, b"no-store"))
                message["headers"] = headers
                seconds = None if SETTLED in names else perf_counter() - began
                _count(_method(scope), self._route(scope), message["status"], seconds)
            await send(message)

        return send_completed

    async def _head(self, scope: Scope, _receive: Receive, send: Send) -> None:
        """Send only the start of the response to a GET. A body of the request has no meaning, and is not read."""
        started = asyncio.Event()

        async def disconnect() -> Message:
            # A streaming response ends when its client disconnects.
            await started.wait()
            return {"type": "http.disconnect"}

        async def send_start(message: Message) -> None:
            if message["type"] == "http.response.start":
                scope["fastapi"] = get.get("fastapi", {})  # the route
                await send(message)
                await send({"type": "http.response.body", "body": b""})
                started.set()

        headers = [(name, value) for name, value in scope["headers"] if name not in BODY_HEADERS]
        get: Scope = {**scope, "method": "GET", "headers": headers}
        await self._app(get, disconnect, send_start)

    async def _trace(self, serve: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        # A sandbox must not add spans to traces of others.
        headers = {} if scope["path"].startswith(WEBHOOKS) else dict(Headers(scope=scope))
        method = _method(scope)
        with correlation.span(method, "server", headers, request_id=correlation.request_id.get()) as span:
            try:
                await serve(scope, receive, send)
            finally:
                span.update_name(f"{method} {self._route(scope)}")

    def _route(self, scope: Scope) -> str:
        """Return the template of the path, which contains no id and no text of a user."""
        route = scope.get("fastapi", {}).get("effective_route_context")
        path: str = scope["path"]
        if route is not None:
            return str(route.path)
        if path.startswith(OF_SANDBOXES):
            return f"{OF_SANDBOXES}{{sandbox_id}}"
        return path if path in self._fixed_paths else OTHER


def _method(scope: Scope) -> str:
    method: str = scope.get("method", "GET")
    return method if method in METHODS else OTHER


def _count(method: str, route: str, status: int, seconds: float | None) -> None:
    with suppress(Exception):  # a metric must not fail a response
        duration, responses = _counters(method, route, status // 100)
        if seconds is not None:
            duration.observe(seconds)
        responses.inc()


@lru_cache(maxsize=4096)
def _counters(method: str, route: str, status: int) -> tuple[Histogram, Counter]:
    return SECONDS.labels(method, route), RESPONSES.labels(method, route, f"{status}xx")


def _simplify_cookies(scope: Scope) -> None:
    """Remove backslashes from cookies, which FastAPI parses for each request. No cookie of this service has one.

    Before 3.11.10, Python parses them in quadratic time (CVE-2024-7592), and their sender needs no key.
    """
    if b"\\" in b"".join([value for name, value in scope["headers"] if name == COOKIE]):
        scope["headers"] = [
            (name, value.replace(b"\\", b"") if name == COOKIE else value) for name, value in scope["headers"]
        ]


def _find_id(scope: Scope) -> str | None:
    """Return the client's id if it is well-formed."""
    texts = (value.decode("latin-1") for name, value in scope["headers"] if name == REQUEST_ID)
    return next(filter(correlation.is_well_formed, texts), None)


def _new_id() -> str:
    # No secret: only two requests must not have the same one. The system's random bytes would cost a system call.
    return f"{getrandbits(128):032x}"
