"""Starting a conversation, and following the start in the same answer (V1's `stream-start`)."""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from api.errors.openapi import error_responses
from api.request.authentication import CurrentCaller, ForUsers
from api.request.context import Context, ContextDep
from api.request.idempotency import IdempotencyOption
from api.request.jobs import JobQueueDep
from api.request.wait import Accepted
from api.routes.v1.conversations import start
from api.schemas.v1.start_tasks import StartRequest, StartTaskInfo, write_start_task
from shared.states import Stage

router = APIRouter(prefix="/app-conversations", tags=["conversations"], route_class=ForUsers)

# How long a start is followed, and how soon a stage is seen that is not the last one.
MAX_SECONDS = 900.0
LOOK_SECONDS = 1.0


@router.post("/stream-start", response_model=list[StartTaskInfo], responses=error_responses(404, 409, 429))
async def stream_start(
    context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, idempotent: IdempotencyOption, request: StartRequest
) -> StreamingResponse:
    """Wish for a conversation; the answer is a list that grows with each stage that is seen, and ends with the start.

    What is wrong with the request is said before it begins. The start goes on whether anybody follows it or not.
    """
    wished = await run_in_threadpool(partial(start, context, caller, queue, idempotent, request))
    queue.enqueue_now(*wished.jobs)
    shown = await run_in_threadpool(_read, wished.answer)
    return StreamingResponse(_follow(context, wished, shown), media_type="application/json")


def _read(answer: StartTaskInfo | Response) -> StartTaskInfo:
    """The task as it was accepted; what is kept under an `Idempotency-Key` comes as it went out."""
    return StartTaskInfo.model_validate_json(bytes(answer.body)) if isinstance(answer, Response) else answer


async def _follow(context: Context, wished: Accepted[Any], shown: StartTaskInfo) -> AsyncIterator[bytes]:
    yield b"[\n" + await run_in_threadpool(write_start_task, shown)
    ends = asyncio.get_running_loop().time() + MAX_SECONDS
    while (
        not Stage(shown.status).is_final and not context.waiter.is_closed and asyncio.get_running_loop().time() < ends
    ):
        if wished.awaited_row is None or wished.look is None:
            break
        await context.waiter.settle(wished.awaited_row, LOOK_SECONDS)
        seen = await run_in_threadpool(wished.look)
        if seen.status != shown.status:
            shown = seen
            yield b",\n" + await run_in_threadpool(write_start_task, shown)
    yield b"]"
