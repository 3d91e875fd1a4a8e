"""Routes of lists. Clients request lists more often than anything else, and mostly unchanged ones.

A response is cached with the version of its user's lists, which the query that authenticates the user reads. While the
version is unchanged, `ResponseCacheMiddleware` serves the response before anything else runs (decisions 25, 50).
"""

import asyncio
import re
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from hashlib import blake2b
from typing import Any, TypeVar

from fastapi import Request, Response

from api.errors.openapi import Responses
from api.lists.response_cache import CachedResponse, ResponseCache
from api.request.authentication import Handler, UserRoute, to_caller

# Any client can send long queries: their responses are not cached.
MAX_QUERY_BYTES = 1000
# Building a list is mostly CPU time: more threads contend, and each list costs twice as much. Slow lists must not take
# all of the store's connections for single reads either: authentication uses them.
_THREADS = ThreadPoolExecutor(4, "lists")
# An entity tag, strong or weak: `If-None-Match` compares its quoted part only (RFC 9110, 13.1.2).
ENTITY_TAG = re.compile(r'(?:W/)?("[^"]*")')
TEXT = {"schema": {"type": "string"}}
IF_NONE_MATCH = {"name": "If-None-Match", "in": "header", "description": "`ETag`s of earlier responses"} | TEXT
RESPONSES: Responses = {
    200: {"headers": {"ETag": {"description": "strong: other bytes have another one"} | TEXT}},
    304: {"description": "the list is one that `If-None-Match` names"},
}

Result = TypeVar("Result")


class ListRoute(UserRoute):
    """A route whose JSON depends only on its URL, on its caller, and on what `ListVersion` covers."""

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        """Take the options of `UserRoute`."""
        options["responses"] = RESPONSES | (options.get("responses") or {})
        super().__init__(path, endpoint, **options | {"openapi_extra": {"parameters": [IF_NONE_MATCH]}})

    def get_route_handler(self) -> Handler:
        """Authenticate the caller, build the list, and cache it."""
        build = super().get_route_handler()

        async def build_and_cache(request: Request) -> Response:
            body = bytes((await build(request)).body)
            user = request.state.user
            response = CachedResponse(user.list_version, body, _entity_tag(user.id, body))
            if len(request.scope["query_string"]) <= MAX_QUERY_BYTES:
                cache: ResponseCache = request.app.state.response_cache
                cache.store(cache_key(request), response)
            return respond(request, response)

        return build_and_cache


async def in_list_thread(build: Callable[..., Result], *arguments: Any) -> Result:
    """Build a list in one of the threads for lists."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, build, *arguments)


def cache_key(request: Request) -> Hashable:
    """Return all that an authenticated request's response depends on, besides the version."""
    caller = to_caller(request, request.state.user)
    return (caller.id, caller.origin, request.scope["path"], request.scope["query_string"])


def respond(request: Request, response: CachedResponse) -> Response:
    """Return the list, or a 304 if the caller has it."""
    headers = {"ETag": response.etag}
    known = ", ".join(request.headers.getlist("If-None-Match"))
    if known.strip() == "*" or response.etag in ENTITY_TAG.findall(known):
        return Response(status_code=304, headers=headers)
    return Response(response.body, headers=headers, media_type="application/json")


def _entity_tag(user_id: str, body: bytes) -> str:
    return f'"{blake2b(body, digest_size=16, key=user_id.encode()).hexdigest()}"'
