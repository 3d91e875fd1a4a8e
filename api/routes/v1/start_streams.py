"""Start a conversation and stream the progress of the start in the same response (V1's `stream-start`)."""

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse

from api.errors.openapi import error_responses
from api.request.authentication import Caller, CurrentCaller, UserRoute
from api.request.command_options import Accepted, IdempotencyOption
from api.request.context import Context, ContextDep, JobQueueDep
from api.request.held_streams import HELD_STREAM
from api.routes.v1.conversations import read_start, start
from api.schemas.v1.start_tasks import StartRequest, StartTaskInfo, write_start_task
from shared.states import FINAL_STAGES

router = APIRouter(prefix="/app-conversations", tags=["conversations"], route_class=UserRoute)

MAX_SECONDS = 900.0
# The waiter reports the final stage only; the stages before it are polled.
POLL_SECONDS = 1.0


@router.post(
    "/stream-start",
    response_model=list[StartTaskInfo],
    responses=error_responses(404, 409, 429),
    dependencies=[HELD_STREAM],
)
async def stream_start(
    context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, idempotent: IdempotencyOption, request: StartRequest
) -> StreamingResponse:
    """Start a conversation; the response is a list that grows with each observed stage, and ends with the start.

    An invalid request is refused before the list begins. The list also ends after 15 minutes, or when the API stops.
    The start continues after that, and if the caller disconnects.
    """
    accepted = await context.run_in_turn(start, context, caller, queue, idempotent, request)
    queue.enqueue_now(*accepted.jobs)
    shown = await context.run_in_turn(_read_response, accepted.response)
    return StreamingResponse(_stream(context, caller, accepted, shown), media_type="application/json")


def _read_response(response: StartTaskInfo | Response) -> StartTaskInfo:
    """The task as of the commit, or as in the stored response of an `Idempotency-Key`."""
    return StartTaskInfo.model_validate_json(bytes(response.body)) if isinstance(response, Response) else response


async def _stream(
    context: Context, caller: Caller, accepted: Accepted[StartTaskInfo | Response], shown: StartTaskInfo
) -> AsyncIterator[bytes]:
    yield b"[\n" + await context.run_in_turn(write_start_task, shown)
    async for text in _follow(context, caller, accepted, shown):
        yield text
    yield b"]"


async def _follow(
    context: Context, caller: Caller, accepted: Accepted[StartTaskInfo | Response], shown: StartTaskInfo
) -> AsyncIterator[bytes]:
    ends = asyncio.get_running_loop().time() + MAX_SECONDS
    while (
        shown.status not in FINAL_STAGES and not context.waiter.is_closed and asyncio.get_running_loop().time() < ends
    ):
        await context.waiter.settle(accepted.row, POLL_SECONDS)
        current = await context.run_in_turn(read_start, context, caller, accepted)
        if current is None:
            return  # the conversation was deleted
        if current.status != shown.status:
            shown = current
            yield b",\n" + await context.run_in_turn(write_start_task, shown)
