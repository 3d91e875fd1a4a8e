"""Routes of lists. Clients request lists more often than anything else, and most lists have not changed.

A response is cached with the version of its user's lists, which the query that authenticates the user reads. While the
version is unchanged, `ResponseCacheMiddleware` serves the response before anything else runs (decisions 25, 50).
Otherwise the list is built from its parsed query, which does not depend on the caller and is cached, too.
"""

import asyncio
import re
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import blake2b
from threading import Lock
from typing import Any, NamedTuple

from cachetools import LRUCache
from fastapi import Request, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from api.errors.openapi import Responses
from api.middleware.request_body import has_body
from api.request.authentication import Caller, Handler, UserRoute, find_caller
from api.request.context import Context, get_context
from shared.db.database import StoreError
from shared.errors import WorkspaceError
from shared.observability import failpoints

# Memory of a response besides its body: the objects and the key.
OVERHEAD_BYTES = 1024
# Any client can send long queries: neither they nor their responses are cached.
MAX_QUERY_BYTES = 1000
# Parsed queries cached for each route.
MAX_PARSED_QUERIES = 1024
# Building a list is mostly CPU time: more threads would contend, and each list would cost twice as much. Slow lists
# must not take all of the store's connections for single reads either: authentication uses them.
_THREADS = ThreadPoolExecutor(4, "lists")
# An entity tag, strong or weak: `If-None-Match` compares its quoted part only (RFC 9110, 13.1.2).
ENTITY_TAG = re.compile(r'(?:W/)?("[^"]*")')
TEXT = {"schema": {"type": "string"}}
IF_NONE_MATCH = b"if-none-match"
PARAMETER = {"name": "If-None-Match", "in": "header", "description": "`ETag`s of earlier responses"} | TEXT
RESPONSES: Responses = {
    200: {"headers": {"ETag": {"description": "strong: other bytes have another one"} | TEXT}},
    304: {"description": "the list is one that `If-None-Match` names"},
}


class ListQuery(Response):
    """A parsed query, which a list route's endpoint returns; `build` returns the response for a caller."""

    def __init__(self, build: Callable[[Context, Caller], Response]) -> None:
        super().__init__()
        self.build = build


class CachedResponse(NamedTuple):
    """A response that all requests get, its entity tag, and the version of the lists read before it was built."""

    version: str
    etag: str
    response: Response


class ResponseCache:
    """A least-recently-used cache of responses, limited in bytes."""

    def __init__(self, max_bytes: int) -> None:
        self._responses: LRUCache[Hashable, CachedResponse] = LRUCache(max_bytes, _size)
        self._lock = Lock()

    def find(self, key: Hashable, version: str) -> CachedResponse | None:
        """Return the cached response if it shows this version, else None."""
        with self._lock:
            response = self._responses.get(key)
        return response if response and response.version == version else None

    def store(self, key: Hashable, response: CachedResponse) -> None:
        """Cache a response in place of an older one, unless it is larger than the cache."""
        with self._lock, suppress(ValueError):
            self._responses[key] = response


class ListRoute(UserRoute):
    """A route whose JSON depends only on its URL, on its caller, and on what `ListVersion` covers.

    Its endpoint makes a `ListQuery` from the query alone. A cached query skips FastAPI's dependencies and validation,
    which cost about 0.4 ms of each rebuilt ("uncached") list in `make bench ONLY=lists` (decision 50).
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        options["responses"] = RESPONSES | (options.get("responses") or {})
        super().__init__(path, endpoint, **options | {"openapi_extra": {"parameters": [PARAMETER]}})

    def get_route_handler(self) -> Handler:
        """Authenticate the caller, parse the query, build the list, and cache both."""
        parse, queries = super().get_route_handler(), LRUCache[bytes, Any](MAX_PARSED_QUERIES)

        async def build_and_cache(request: Request) -> Response:
            text = request.scope["query_string"]
            # A request that the response cache has authenticated has no body to check.
            query: Any = queries.get(text) if hasattr(request.state, "caller") else None
            query = query or await parse(request)
            response = await _build(request, query)
            if len(text) <= MAX_QUERY_BYTES:
                queries[text] = query
                cache: ResponseCache = request.app.state.response_cache
                cache.store(cache_key(request), response)
            return respond(request, response)

        return build_and_cache


def cache_key(request: Request) -> Hashable:
    """Return all that an authenticated request's response depends on, besides the version."""
    caller: Caller = request.state.caller
    return (caller.id, caller.sandbox_urls, request.scope["path"], request.scope["query_string"])


def respond(request: Request, response: CachedResponse) -> Response:
    """Return the list, or a 304 if the caller has it."""
    values = [value for name, value in request.scope["headers"] if name == IF_NONE_MATCH]
    if values and _names(b", ".join(values).decode("latin-1"), response.etag):
        return Response(status_code=304, headers={"ETag": response.etag})
    return response.response


class ResponseCacheMiddleware:
    """Serves a cached list before the other layers of the application run."""

    def __init__(self, app: ASGIApp, *, paths: Collection[str], cache: ResponseCache) -> None:
        """Wrap `app`; the routes at `paths` are `ListRoute`s, which fill the cache."""
        self._app, self._paths, self._cache = app, paths, cache

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_plain = scope["type"] == "http" and scope["method"] == "GET" and scope["path"] in self._paths
        response = await self._find(Request(scope)) if is_plain and not has_body(scope) else None
        await (response or self._app)(scope, receive, send)

    async def _find(self, request: Request) -> Response | None:
        failpoints.begin(f"{request.method} {request.scope['path']}")
        try:
            caller = await find_caller(request)
        except (WorkspaceError, StoreError):
            return None  # the route meets the same error and reports it
        response = self._cache.find(cache_key(request), caller.list_version)
        return response and respond(request, response)


async def _build(request: Request, query: ListQuery) -> CachedResponse:
    caller: Caller = request.state.caller
    context = get_context(request)
    async with context.limits.list_threads.of(caller.id):
        built = await asyncio.get_running_loop().run_in_executor(_THREADS, query.build, context, caller)
    body, etag = bytes(built.body), _entity_tag(caller.id, built.body)
    response = Response(body, headers={"ETag": etag}, media_type="application/json")
    return CachedResponse(caller.list_version, etag, response)


def _entity_tag(user_id: str, body: bytes | memoryview) -> str:
    return f'"{blake2b(body, digest_size=16, key=user_id.encode()).hexdigest()}"'


def _names(known: str, etag: str) -> bool:
    return known.strip() == "*" or etag in ENTITY_TAG.findall(known)


def _size(response: CachedResponse) -> int:
    return len(response.response.body) + OVERHEAD_BYTES
