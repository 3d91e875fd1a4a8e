"""List routes. Clients request lists more often than anything else, so these routes do the least work.

One query authenticates the caller and reads the version of their lists. If a response of that version is cached, it is
served before anything else runs (decision 25). Otherwise the route's endpoint parses the query into a `ListResponse`,
which does not depend on the caller and is cached too.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError

from api.errors.openapi import DocumentedRoute
from api.request.authentication import Caller, Handler, authenticate, to_caller
from api.request.context import Context, get_context
from shared.errors import WorkspaceError
from shared.observability import failpoints
from shared.users.api_keys import AuthenticatedKey

# A path and a query string.
Url = tuple[str, bytes]
# Parsed queries cached for each route.
MAX_PARSED_QUERIES = 1024
# Any client can send long queries: longer ones are not cached.
MAX_QUERY_BYTES = 1000
# Rendering a list is mostly CPU time. More threads than this contend, and each list costs twice as much.
_THREADS = ThreadPoolExecutor(4, "lists")


class ListResponse(Response):
    """A parsed query; `answer` renders its list for a caller."""

    def __init__(self, answer: Callable[[Context, Caller], Response]) -> None:
        super().__init__()
        self.answer = answer


class ListRoute(DocumentedRoute):
    """A route for users whose endpoint makes a `ListResponse` from the query alone, without waiting for anything.

    Its responses are JSON that depends only on the query and on what `ListVersion` covers.
    """

    def get_route_handler(self) -> Handler:
        """Parse the query, then authenticate the caller, then render the list."""
        parse, parsed = super().get_route_handler(), dict[Url, ListResponse]()

        async def handle(request: Request) -> Response:
            failpoints.begin(f"{request.method} {request.scope['route'].path}")
            url = (request.scope["path"], request.scope["query_string"])
            if (listing := parsed.get(url)) is None:
                listing = await _parse(parse, request)
                _cache_parsed(parsed, url, listing)
            return await _respond(request, listing)

        return handle


async def response_from_cache(request: Request, route: ListRoute) -> Response | None:
    """Return the cached response; None if there is no current one, or if the request is not valid."""
    failpoints.begin(f"{request.method} {route.path}")
    try:
        user = request.state.user = await authenticate(request)
    except (WorkspaceError, SQLAlchemyError):
        return None  # the route meets the same error and reports it
    key, version = _cache_key(request, to_caller(request, user)), user.lists_version
    body = None if version is None else get_context(request).list_cache.find(key, version)
    return None if body is None else Response(body, media_type="application/json")


async def _parse(parse: Handler, request: Request) -> Any:
    try:
        return await parse(request)
    except (RequestValidationError, WorkspaceError):
        await _authenticated(request)  # only authenticated callers learn what is wrong
        raise


def _cache_parsed(parsed: dict[Url, ListResponse], url: Url, listing: ListResponse) -> None:
    if len(url[1]) <= MAX_QUERY_BYTES:
        if len(parsed) >= MAX_PARSED_QUERIES:
            parsed.clear()
        parsed[url] = listing


async def _respond(request: Request, listing: ListResponse) -> Response:
    context, user = get_context(request), await _authenticated(request)
    caller, version = to_caller(request, user), user.lists_version
    response = await asyncio.get_running_loop().run_in_executor(_THREADS, listing.answer, context, caller)
    if version is not None and len(request.scope["query_string"]) <= MAX_QUERY_BYTES:
        context.list_cache.store(_cache_key(request, caller), version, bytes(response.body))
    return response


async def _authenticated(request: Request) -> AuthenticatedKey:
    user: AuthenticatedKey | None = getattr(request.state, "user", None)
    return user or await authenticate(request)


def _cache_key(request: Request, caller: Caller) -> Hashable:
    """Return all that a response depends on besides the version."""
    return (caller.id, caller.origin, request.scope["path"], request.scope["query_string"])
