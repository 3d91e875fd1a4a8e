"""Lists: the routes that are asked most often, and so take the shortest way.

A list's route says what a query means, as a `Listing`. That is the same for everybody, and is remembered. Who asks is
found out together with the version of what their lists show: an answer that was made from this version is given again.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError

from api.auth import Caller, Handler, find_holder, know
from api.context import Context, get_context
from api.refusals import DescribedRoute
from shared import failpoints

# A path and a query.
Asked = tuple[str, bytes]
# Queries that are remembered, of each route; and how long they may be, in bytes: anybody can send long ones.
REMEMBERED = 1024
LONGEST = 1000
# A list is mostly work, not waiting: more threads than this get in each other's way, and each list costs twice as much.
_LANES = ThreadPoolExecutor(4, "lists")


class Listing(Response):
    """What is asked for; `answer` reads it for a caller."""

    def __init__(self, answer: Callable[[Context, Caller], Response]) -> None:
        super().__init__()
        self.answer = answer


class ListRoute(DescribedRoute):
    """A route for users whose function makes a `Listing` of its query alone, without waiting for anything.

    Its answers are JSON that depends on nothing but the query and what `ListVersion` watches.
    """

    def get_route_handler(self) -> Handler:
        """Understand the query, then find out who asks, then answer."""
        understand, known = super().get_route_handler(), dict[Asked, Listing]()

        async def handle(request: Request) -> Response:
            failpoints.begin(f"{request.method} {request.scope['route'].path}")
            asked = (request.scope["path"], request.scope["query_string"])
            if (listing := known.get(asked)) is None:
                listing = await _understand(understand, request)
                _remember(known, asked, listing)
            return await _answer(request, asked, listing)

        return handle


async def _understand(understand: Handler, request: Request) -> Any:
    try:
        return await understand(request)
    except RequestValidationError:
        await find_holder(request)  # a stranger is not told what is wrong
        raise


def _remember(known: dict[Asked, Listing], asked: Asked, listing: Listing) -> None:
    if len(asked[1]) <= LONGEST:
        if len(known) >= REMEMBERED:
            known.clear()
        known[asked] = listing


async def _answer(request: Request, asked: Asked, listing: Listing) -> Response:
    here, holder = get_context(request), await find_holder(request)
    me, version = know(request, holder), holder.lists_version if len(asked[1]) <= LONGEST else None
    key = (me.id, me.origin, *asked)
    if version is not None and (body := here.answers.find(key, version)) is not None:
        return Response(body, media_type="application/json")
    answer = await asyncio.get_running_loop().run_in_executor(_LANES, listing.answer, here, me)
    if version is not None:
        here.answers.keep(key, version, bytes(answer.body))
    return answer
