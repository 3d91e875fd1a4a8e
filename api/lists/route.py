"""Lists: the routes that are asked most often, and so take the shortest way.

Who asks is found out together with the version of what their lists show. An answer that was made from this version is
given again, before anything else is looked at (decision 25). Else the list's route says what the query means, as a
`Listing`: that is the same for everybody, and is remembered.
"""

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import SQLAlchemyError

from api.errors.openapi import DocumentedRoute
from api.request.authentication import Caller, Handler, find_holder, to_caller
from api.request.context import Context, get_context
from shared.errors import WorkspaceError
from shared.observability import failpoints
from shared.users.api_keys import AuthenticatedKey

# A path and a query.
Asked = tuple[str, bytes]
# Queries that are remembered, of each route; and how long they may be, in bytes: anybody can send long ones.
REMEMBERED = 1024
LONGEST = 1000
# A list is mostly work, not waiting: more threads than this get in each other's way, and each list costs twice as much.
_LANES = ThreadPoolExecutor(4, "lists")


class ListResponse(Response):
    """What is asked for; `answer` reads it for a caller."""

    def __init__(self, answer: Callable[[Context, Caller], Response]) -> None:
        super().__init__()
        self.answer = answer


class ListRoute(DocumentedRoute):
    """A route for users whose function makes a `Listing` of its query alone, without waiting for anything.

    Its answers are JSON that depends on nothing but the query and what `ListVersion` watches.
    """

    def get_route_handler(self) -> Handler:
        """Understand the query, then find out who asks, then answer."""
        understand, known = super().get_route_handler(), dict[Asked, ListResponse]()

        async def handle(request: Request) -> Response:
            failpoints.begin(f"{request.method} {request.scope['route'].path}")
            asked = (request.scope["path"], request.scope["query_string"])
            if (listing := known.get(asked)) is None:
                listing = await _understand(understand, request)
                _remember(known, asked, listing)
            return await _answer(request, listing)

        return handle


async def answer_from_cache(request: Request, route: ListRoute) -> Response | None:
    """The answer as it was; None if there is none that is true still, or if something is wrong with the request."""
    failpoints.begin(f"{request.method} {route.path}")
    try:
        holder = request.state.holder = await find_holder(request)
    except (WorkspaceError, SQLAlchemyError):
        return None  # it will be found again, by those who say what it is
    kept, version = _place(request, to_caller(request, holder)), holder.lists_version
    body = None if version is None else get_context(request).answers.find(kept, version)
    return None if body is None else Response(body, media_type="application/json")


async def _understand(understand: Handler, request: Request) -> Any:
    try:
        return await understand(request)
    except (RequestValidationError, WorkspaceError):
        await _holder(request)  # a stranger is not told what is wrong
        raise


def _remember(known: dict[Asked, ListResponse], asked: Asked, listing: ListResponse) -> None:
    if len(asked[1]) <= LONGEST:
        if len(known) >= REMEMBERED:
            known.clear()
        known[asked] = listing


async def _answer(request: Request, listing: ListResponse) -> Response:
    context, holder = get_context(request), await _holder(request)
    caller, version = to_caller(request, holder), holder.lists_version
    answer = await asyncio.get_running_loop().run_in_executor(_LANES, listing.answer, context, caller)
    if version is not None and len(request.scope["query_string"]) <= LONGEST:
        context.answers.keep(_place(request, caller), version, bytes(answer.body))
    return answer


async def _holder(request: Request) -> AuthenticatedKey:
    found: AuthenticatedKey | None = getattr(request.state, "holder", None)
    return found or await find_holder(request)


def _place(request: Request, caller: Caller) -> Hashable:
    """Where an answer is kept: what it depends on, beside the version."""
    return (caller.id, caller.origin, request.scope["path"], request.scope["query_string"])
