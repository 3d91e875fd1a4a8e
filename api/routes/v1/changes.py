"""The caller's changes as they happen, as server-sent events: ids and states, nothing secret."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from sqlalchemy.exc import SQLAlchemyError

from api.realtime.change_streams import ChangeBatch
from api.request.authentication import CurrentCaller, ForUsers
from api.request.context import ContextDep

log = structlog.get_logger()

router = APIRouter(prefix="/changes", tags=["changes"], route_class=ForUsers)

MOST = 2**63 - 1
# Neither caches nor proxies may keep anything back.
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
EXAMPLE = (
    'event: reset\nid: 41\ndata: {}\n\nevent: change\nid: 42\ndata: {"kind":"sandbox","id":"…","status":"RUNNING"}\n\n'
)
SHAPE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}, "example": EXAMPLE}}}
}


@router.get("", response_class=StreamingResponse, responses=SHAPE)
async def follow_changes(
    context: ContextDep,
    caller: CurrentCaller,
    resumed_at: Annotated[
        int | None, Header(alias="Last-Event-ID", ge=0, le=MOST, description="The id of the last event that came")
    ] = None,
    last_event_id: Annotated[
        int | None, Query(ge=0, le=MOST, description="The same, for clients that can't set it; the header goes before")
    ] = None,
) -> StreamingResponse:
    """Follow the changes of the caller's sandboxes, start tasks and conversations (ours).

    `reset` comes first, unless the stream goes on from an id: read your lists now, and follow from here on. It comes
    too where changes since that id are no longer known. `change` names a row and what it is: the status of a sandbox
    (DELETING once that is wished, DELETED at the end), the stage of a start task, a conversation's execution status.
    The stream ends after some minutes, and when the service is restarted: go on from the last id.
    """
    after = last_event_id if resumed_at is None else resumed_at
    context.streams.check_share(caller.id)
    batch = context.streams.follow(caller.id, after)
    return StreamingResponse(_write(batch), media_type="text/event-stream", headers=HEADERS)


async def _write(stream: AsyncGenerator[ChangeBatch | None]) -> AsyncIterator[str]:
    try:
        async with aclosing(stream):
            async for batch in stream:
                yield ": nothing new\n\n" if batch is None else _show(batch)
    except SQLAlchemyError as error:
        # The answer has begun: all that can be said is its end, and the client comes again.
        log.warning("stream_broken", error=type(error).__name__)


def _show(batch: ChangeBatch) -> str:
    if batch.entries is None:
        return _event("reset", batch.number, {})
    changes = (
        (entry.number, {"kind": entry.kind, "id": entry.row_id, "status": entry.status}) for entry in batch.entries
    )
    return "".join(_event("change", number, change) for number, change in changes)


def _event(name: str, number: int, data: dict[str, Any]) -> str:
    return f"event: {name}\nid: {number}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
