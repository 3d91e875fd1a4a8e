"""Stream the caller's changes as server-sent events: ids and states, no secrets."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated

import structlog
from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from fastapi.sse import EventSourceResponse, format_sse_event

from api.errors.openapi import Responses, error_responses
from api.realtime.change_streams import ChangeBatch
from api.request.authentication import CurrentCaller, UserRoute
from api.request.context import Context, ContextDep
from api.request.held_streams import HELD_STREAM
from shared.db.database import StoreError
from shared.models import ChangeEntry

log = structlog.get_logger()

router = APIRouter(prefix="/changes", tags=["changes"], route_class=UserRoute)

MAX_ID = 2**63 - 1
# Proxies must not buffer events.
HEADERS = {"X-Accel-Buffering": "no"}
EXAMPLE = (
    'event: reset\ndata: {}\nid: 41\n\nevent: change\ndata: {"kind":"sandbox","id":"…","status":"RUNNING"}\nid: 42\n\n'
)
SHAPE: Responses = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}, "example": EXAMPLE}}}}


@router.get("", response_class=StreamingResponse, responses=SHAPE | error_responses(429), dependencies=[HELD_STREAM])
async def follow_changes(
    context: ContextDep,
    caller: CurrentCaller,
    resumed_at: Annotated[
        int | None, Header(alias="Last-Event-ID", ge=0, le=MAX_ID, description="The id of the last received event")
    ] = None,
    last_event_id: Annotated[
        int | None,
        Query(ge=0, le=MAX_ID, description="As the header, for clients that can't set it; the header takes precedence"),
    ] = None,
) -> EventSourceResponse:
    """Stream the changes of the caller's sandboxes, start tasks and conversations (Agent Workspace extension).

    Without an id, the first event is `reset`: read your lists now, and apply the changes that follow. `reset` is also
    sent where the changes since the id are no longer stored. `change` holds a row's id and state: the status of a
    sandbox (DELETING as soon as deletion is requested, DELETED at the end), the stage of a start task, or a
    conversation's execution status. The stream ends after some minutes, and when the service restarts: reconnect with
    the last id.
    """
    after = last_event_id if resumed_at is None else resumed_at
    return EventSourceResponse(_write(context, caller.id, after), headers=HEADERS)


async def _write(context: Context, owner_id: str, after: int | None) -> AsyncIterator[bytes]:
    stream = context.streams.follow(owner_id, after)
    try:
        async with aclosing(stream):
            async for batch in stream:
                yield _show(batch)
    except StoreError as error:
        # The response has begun, so it can only end. The client reconnects.
        log.warning("stream_broken", error=type(error).__name__)


def _show(batch: ChangeBatch | None) -> bytes:
    if batch is None:
        return format_sse_event(comment="nothing new")
    if batch.entries is None:
        return format_sse_event(event="reset", data_str="{}", id=str(batch.number))
    return b"".join(map(_serialize_change, batch.entries))


def _serialize_change(entry: ChangeEntry) -> bytes:
    change = {"kind": entry.kind, "id": entry.row_id, "status": entry.status}
    return format_sse_event(event="change", data_str=json.dumps(change, separators=(",", ":")), id=str(entry.number))
