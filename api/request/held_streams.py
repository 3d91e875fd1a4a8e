"""Counts a stream or a download against the user's limits, until its response has ended."""

from collections.abc import AsyncIterator

from fastapi import Depends

from api.request.authentication import CurrentCaller
from api.request.context import ContextDep


async def hold_stream(context: ContextDep, caller: CurrentCaller) -> AsyncIterator[None]:
    """Count the caller's stream. It counts at once, because many requests may begin at a time.

    Raises:
        TooManyRequests: the caller has too many streams.
        TemporarilyUnavailable: all users together have too many.
    """
    with context.limits.streams.hold(caller.id):
        yield


async def hold_download(context: ContextDep, caller: CurrentCaller) -> AsyncIterator[None]:
    """Count the caller's download.

    Raises:
        TooManyRequests: the caller has too many downloads.
        TemporarilyUnavailable: all users together have too many.
    """
    with context.limits.downloads.hold(caller.id):
        yield


HELD_STREAM = Depends(hold_stream)
HELD_DOWNLOAD = Depends(hold_download)
