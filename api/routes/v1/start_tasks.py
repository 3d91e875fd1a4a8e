"""Start tasks: the progress of conversation starts."""

from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from api.errors.openapi import error_responses
from api.realtime.completion_waiter import AwaitedRow
from api.request.authentication import Caller, CurrentCaller, UserRoute
from api.request.command_options import Accepted, WaitOption
from api.request.context import Context, ContextDep, JobQueue, JobQueueDep
from api.request.query_params import Ids, Limit, PageId, RowId, Since
from api.schemas.page_text import write_items, write_list
from api.schemas.v1.fields import PageOf
from api.schemas.v1.start_tasks import StartTaskInfo, serialize_start_task, start_task_response, write_start_task
from shared.conversations import start_tasks
from shared.conversations.start_tasks import StartTaskFilter
from shared.errors import NotFound
from shared.ids import parse_ids
from shared.models import Sandbox, StartTask
from shared.states import Stage

router = APIRouter(prefix="/app-conversations/start-tasks", tags=["start tasks"], route_class=UserRoute)


async def read_filter(
    conversation_id: Annotated[
        RowId | None, Query(alias="conversation_id__eq", description="The conversation that the task starts")
    ] = None,
    created_from: Annotated[Since | None, Query(alias="created_at__gte")] = None,
    stage: Annotated[
        Stage | None, Query(alias="status__eq", description="Only this status (Agent Workspace extension)")
    ] = None,
) -> StartTaskFilter:
    """Read the filter of a search from the query."""
    return StartTaskFilter(conversation_id, created_from, stage)


FilterOption = Annotated[StartTaskFilter, Depends(read_filter)]


class StartTaskOrder(StrEnum):
    """The orders in which start tasks are listed."""

    CREATED_AT = "CREATED_AT"
    CREATED_AT_DESC = "CREATED_AT_DESC"
    UPDATED_AT = "UPDATED_AT"
    UPDATED_AT_DESC = "UPDATED_AT_DESC"


# A task holds up to 4 MB, so the answers are written in a thread.
@router.get("/search", response_model=PageOf[StartTaskInfo])
def search_start_tasks(
    context: ContextDep,
    caller: CurrentCaller,
    filters: FilterOption,
    sort_order: StartTaskOrder = StartTaskOrder.CREATED_AT_DESC,
    page_id: PageId = None,
    limit: Limit = 100,
) -> Response:
    """A page of the caller's start tasks; it holds fewer of them where they are large."""
    with context.database.reading() as session:
        page = start_tasks.search(session, caller.id, filters, sort_order=sort_order, page_id=page_id, limit=limit)
    return write_items((_write(caller, row) for row in page.items), page.next_page_id)


@router.get("/count")
def count_start_tasks(context: ContextDep, caller: CurrentCaller, filters: FilterOption) -> int:
    """The number of start tasks that a search with these filters finds."""
    with context.database.reading() as session:
        return start_tasks.count(session, caller.id, filters)


@router.get("", response_model=list[StartTaskInfo | None], responses=error_responses(413))
def get_start_tasks(context: ContextDep, caller: CurrentCaller, ids: Annotated[Ids, Query()]) -> Response:
    """The caller's start tasks with these ids, in order; null for an unknown one."""
    hexes = parse_ids(ids)
    with context.database.reading() as session:
        found = start_tasks.get_many(session, hexes, caller.id)
    return write_list(_write(caller, row) for row in found)


@router.get("/{task_id}", response_model=StartTaskInfo)
def get_start_task(context: ContextDep, caller: CurrentCaller, task_id: RowId) -> Response:
    """One of the caller's start tasks (Agent Workspace extension)."""
    return start_task_response(_read(context, caller, task_id))


@router.post("/{task_id}/cancel", response_model=StartTaskInfo, responses=error_responses(409))
async def cancel_start_task(
    context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, wait: WaitOption, task_id: RowId
) -> Response:
    """Cancel a start in progress (Agent Workspace extension).

    It ends in ERROR at its next action; a sandbox created for it is deleted.
    """
    accepted = await context.run_in_turn(_cancel, context, caller, queue, task_id)
    waited = await wait.until_complete(accepted.row, jobs=accepted.jobs)
    shown = await context.run_in_turn(_read, context, caller, task_id) if waited else accepted.response
    return wait.add_headers(await context.run_in_turn(start_task_response, shown))


def _cancel(context: Context, caller: Caller, queue: JobQueue, task_id: str) -> Accepted[StartTaskInfo]:
    with context.database.transaction() as session:
        cancelled = start_tasks.cancel(session, task_id, caller.id, due_at=queue.due_at)
        response = serialize_start_task(*cancelled, urls=caller.sandbox_urls)
    return Accepted(response, AwaitedRow(StartTask, task_id), (cancelled.job,))


def _write(caller: Caller, row: tuple[StartTask, Sandbox | None] | None) -> bytes:
    return b"null" if row is None else write_start_task(serialize_start_task(*row, urls=caller.sandbox_urls))


def _read(context: Context, caller: Caller, task_id: str) -> StartTaskInfo:
    with context.database.reading() as session:
        [found] = start_tasks.get_many(session, [task_id], caller.id)
    if found is None:
        raise NotFound("start task", task_id)
    return serialize_start_task(*found, urls=caller.sandbox_urls)
