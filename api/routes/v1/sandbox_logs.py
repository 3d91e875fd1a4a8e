"""The logs of a sandbox's containers: what a worker reads now, and what was kept (decision 67)."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, NamedTuple

from fastapi import APIRouter, Query, Response

from api.errors.openapi import error_responses
from api.request.authentication import Caller, CurrentCaller, UserRoute
from api.request.context import Context, ContextDep, JobQueue, JobQueueDep
from api.request.query_params import RowId
from api.schemas.v1.sandbox_logs import SandboxLogsInfo
from shared.clock import now
from shared.container_logs import kept_logs
from shared.container_logs.limits import MAX_LINES
from shared.container_logs.selection import show_lines
from shared.models import Node, Sandbox, SandboxLog
from shared.queue.jobs import ReadLog
from shared.sandboxes import queries as sandbox_queries
from shared.states import Status

router = APIRouter(prefix="/sandboxes", tags=["sandboxes"], route_class=UserRoute)

# How long a request waits for the worker.
SECONDS = 4.0
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.32
# A log that was read less than this ago is not read again.
FRESH_SECONDS = 1.0

Tail = Annotated[int, Query(ge=1, le=MAX_LINES, description="Max number of lines, the last ones")]
After = Annotated[
    str | None, Query(max_length=64, description="`cursor` of the previous response: only later lines are returned")
]


class _Found(NamedTuple):
    """A sandbox with its logs.

    Args:
        read_at: when a worker last read a log, or found none; None: unknown.
        has_worker: whether there may be a container whose log a worker can read.
    """

    sandbox: Sandbox
    logs: Sequence[SandboxLog]
    read_at: datetime | None
    has_worker: bool


@router.get("/{sandbox_id}/logs", response_model=SandboxLogsInfo, responses=error_responses(429))
async def get_logs(
    context: ContextDep,
    caller: CurrentCaller,
    queue: JobQueueDep,
    sandbox_id: RowId,
    tail: Tail = MAX_LINES,
    after: After = None,
) -> Response:
    """The logs of the sandbox's containers, deleted sandboxes included (Agent Workspace extension).

    The last 64 KiB of each of the last three containers, without the secrets that the service knows. If the sandbox's
    worker does not respond within 4 s, `is_live` is false, and the logs are those that were kept.
    """
    found = await context.run_in_turn(_find, context, caller, sandbox_id)
    is_live = _is_fresh(found)
    if not is_live and found.has_worker:
        with context.limits.waiting.hold(caller.id):
            is_live = await _await_reading(context, queue, found)
        found = await context.run_in_turn(_find, context, caller, sandbox_id)
    return await context.run_in_turn(_write, found, tail, after, is_live=is_live)


def _find(context: Context, caller: Caller, sandbox_id: str) -> _Found:
    with context.database.reading() as session:
        sandbox = sandbox_queries.get(session, sandbox_id, caller.id, deleted=True)
        node = session.get(Node, sandbox.node_id) if sandbox.node_id else None
        # Not the status: a node that is lost keeps its cordon.
        has_worker = node is not None and node.detail is None and sandbox.status != Status.DELETED
        logs = kept_logs.list_kept(session, sandbox.id)
        return _Found(sandbox, logs, kept_logs.find_last_reading(session, sandbox.id), has_worker)


def _write(found: _Found, tail: int, after: str | None, *, is_live: bool) -> Response:
    shown = show_lines(found.sandbox, found.logs, is_live=is_live, tail=tail, after=after)
    return Response(SandboxLogsInfo.model_validate(shown).model_dump_json(), media_type="application/json")


def _is_fresh(found: _Found) -> bool:
    if found.read_at is None or not found.has_worker:
        return False
    return (now() - found.read_at).total_seconds() < FRESH_SECONDS


async def _await_reading(context: Context, queue: JobQueue, found: _Found) -> bool:
    """Have the worker read the log, and wait until it has.

    The job message may get lost, and is not repeated, because only this request depends on it.
    """
    sandbox, pause = found.sandbox, FIRST_PAUSE
    ends = asyncio.get_running_loop().time() + SECONDS
    queue.enqueue_now(ReadLog(sandbox.id, sandbox.node_id))
    while not context.waiter.is_closed and asyncio.get_running_loop().time() < ends:
        await asyncio.sleep(pause)
        pause = min(LONGEST_PAUSE, 2 * pause)
        last = await context.run_in_turn(_last_reading, context, sandbox.id)
        # `last` is older or None if the log that was found first has expired meanwhile.
        if last is not None and (found.read_at is None or last > found.read_at):
            return True
    return False


def _last_reading(context: Context, sandbox_id: str) -> datetime | None:
    with context.database.reading() as session:
        return kept_logs.find_last_reading(session, sandbox_id)
