"""Conversations: start, list, change and delete."""

from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse

from api.errors.openapi import error_responses
from api.lists import ListQuery, ListRoute
from api.realtime.completion_waiter import AwaitedRow
from api.request.authentication import Caller, CurrentCaller, UserRoute
from api.request.command_options import Accepted, IdempotencyOption, IdempotentRequest, WaitOption
from api.request.context import Context, ContextDep, JobQueue, JobQueueDep
from api.request.held_streams import HELD_DOWNLOAD
from api.request.query_params import Ids, Limit, PageId, RowId, Since
from api.routes.v1.conversation_export import ArchiveResponse, check_number, export
from api.schemas.page_text import write_count, write_page
from api.schemas.v1.conversations import AppConversation, ConversationUpdate, serialize_conversation, write_conversation
from api.schemas.v1.fields import PageOf, Success
from api.schemas.v1.start_tasks import StartRequest, StartTaskInfo, serialize_start_task, start_task_response
from shared.conversations import deletion as conversation_deletion
from shared.conversations import lists as conversation_lists
from shared.conversations import queries as conversation_queries
from shared.conversations import start as conversation_start
from shared.conversations import start_tasks
from shared.conversations.lists import ConversationFilter
from shared.conversations.start import StartCommand
from shared.db.database import Session, StoreError
from shared.errors import Conflict
from shared.ids import parse_ids
from shared.models import Conversation, Sandbox, StartTask
from shared.queue.jobs import Job

router = APIRouter(prefix="/app-conversations", tags=["conversations"], route_class=UserRoute)
lists = APIRouter(prefix=router.prefix, tags=router.tags, route_class=ListRoute)
# Max transactions of one delete, each of at most `deletion.MAX_TARGETS` conversations.
MAX_DELETIONS = 20


class ConversationOrder(StrEnum):
    """The orders in which conversations are listed."""

    CREATED_AT = "CREATED_AT"
    CREATED_AT_DESC = "CREATED_AT_DESC"
    UPDATED_AT = "UPDATED_AT"
    UPDATED_AT_DESC = "UPDATED_AT_DESC"
    TITLE = "TITLE"
    TITLE_DESC = "TITLE_DESC"


async def read_filter(
    title_contains: Annotated[str | None, Query(alias="title__contains", max_length=500)] = None,
    created_from: Annotated[Since | None, Query(alias="created_at__gte")] = None,
    created_before: Annotated[Since | None, Query(alias="created_at__lt")] = None,
    updated_from: Annotated[Since | None, Query(alias="updated_at__gte")] = None,
    updated_before: Annotated[Since | None, Query(alias="updated_at__lt")] = None,
    sandbox_id: Annotated[RowId | None, Query(alias="sandbox_id__eq")] = None,
    include_sub_conversations: bool = False,
) -> ConversationFilter:
    """Read the filter of a search from the query."""
    return ConversationFilter(
        title_contains=title_contains,
        created_from=created_from,
        created_before=created_before,
        updated_from=updated_from,
        updated_before=updated_before,
        sandbox_id=sandbox_id,
        with_sub_conversations=include_sub_conversations,
    )


FilterOption = Annotated[ConversationFilter, Depends(read_filter)]


def start(
    context: Context, caller: Caller, queue: JobQueue, idempotent: IdempotentRequest, request: StartRequest
) -> Accepted[StartTaskInfo | Response]:
    """Commit the start task of a conversation, or find the stored response of the request's idempotency key."""
    may_place = request.sandbox_id is None and request.parent_conversation_id is None
    command = StartCommand(caller.id, request.shown(), request.revealed(), queue.due_at, context.settings.quotas)
    with context.database.transaction(may_place=may_place) as session:
        if (stored := idempotent.find(session)) is not None:
            row = AwaitedRow(StartTask, stored.document["id"])
            return Accepted(stored.response, row, paused_sandbox_ids=stored.document.get("paused_sandbox_ids", []))
        start = conversation_start.create_start_task(session, context.vault, command)
        response = serialize_start_task(start.task, start.sandbox, start.paused, urls=caller.sandbox_urls)
        idempotent.keep(session, response)
    return Accepted(response, AwaitedRow(StartTask, response.id), start.jobs, response.paused_sandbox_ids)


def read_start(context: Context, caller: Caller, accepted: Accepted[StartTaskInfo | Response]) -> StartTaskInfo | None:
    """Read the current state of an accepted start; None: its task was deleted with the conversation."""
    with context.database.reading() as session:
        found = start_tasks.get_many(session, [accepted.row.row_id], caller.id)[0]
    if found is None:
        return None
    shown = serialize_start_task(*found, urls=caller.sandbox_urls)
    return shown.model_copy(update={"paused_sandbox_ids": accepted.paused_sandbox_ids})


@router.post("", response_model=StartTaskInfo, responses=error_responses(404, 409, 429))
async def start_conversation(
    context: ContextDep,
    caller: CurrentCaller,
    queue: JobQueueDep,
    idempotent: IdempotencyOption,
    wait: WaitOption,
    request: StartRequest,
) -> Any:
    """Start a conversation; the response is its start task. With a wait, the task is READY or in ERROR."""
    accepted = await context.run_in_turn(start, context, caller, queue, idempotent, request)
    waited = await wait.until_complete(accepted.row, jobs=accepted.jobs)
    current = await context.run_in_turn(read_start, context, caller, accepted) if waited else None
    return wait.add_headers(await context.run_in_turn(start_task_response, current or accepted.response))


@lists.get("/search", response_model=PageOf[AppConversation])
async def search_conversations(
    filters: FilterOption,
    sort_order: ConversationOrder = ConversationOrder.CREATED_AT_DESC,
    page_id: PageId = None,
    limit: Limit = 100,
) -> ListQuery:
    """A page of the caller's conversations."""
    return ListQuery(lambda context, caller: _search(context, caller, filters, sort_order, page_id, limit))


@lists.get("/count", response_model=int)
async def count_conversations(filters: FilterOption) -> ListQuery:
    """The number of conversations that a search with these filters finds."""
    return ListQuery(
        lambda context, caller: write_count(conversation_lists.count(context.database, caller.id, filters))
    )


@router.get("", response_model=list[AppConversation | None] | PageOf[AppConversation])
def get_conversations(
    context: ContextDep,
    caller: CurrentCaller,
    filters: FilterOption,
    ids: Annotated[Ids | None, Query()] = None,
    sort_order: ConversationOrder = ConversationOrder.CREATED_AT_DESC,
    page_id: PageId = None,
    limit: Limit = 100,
) -> Any:
    """The caller's conversations with these ids, in order, null for an unknown one; without ids, as a search."""
    if ids is None:
        return _search(context, caller, filters, sort_order, page_id, limit)
    hexes = parse_ids(ids)
    with context.database.reading() as session:
        found = conversation_queries.get_many(session, hexes, caller.id)
        shown = {item.id: item for item in _show(session, context, caller, [row for row in found if row])}
    return [shown.get(conversation_id) for conversation_id in hexes]


@router.get("/{conversation_id}")
def get_conversation(context: ContextDep, caller: CurrentCaller, conversation_id: RowId) -> AppConversation:
    """One of the caller's conversations (Agent Workspace extension)."""
    with context.database.reading() as session:
        row = conversation_queries.get_shown(session, conversation_id, caller.id)
        return _show(session, context, caller, [row])[0]


@router.get(
    "/{conversation_id}/download",
    response_class=StreamingResponse,
    responses=error_responses(413),
    dependencies=[HELD_DOWNLOAD],
)
def download_conversation(context: ContextDep, caller: CurrentCaller, conversation_id: RowId) -> StreamingResponse:
    """A zip archive of a conversation and its events. It needs no sandbox."""
    shown = get_conversation(context, caller, conversation_id)
    check_number(context.database, conversation_id, caller.id)
    name = f"conversation_{UUID(conversation_id)}.zip"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    pieces = export(context.database, shown, caller)
    return ArchiveResponse(pieces, media_type="application/zip", headers=headers)


@router.patch("/{conversation_id}")
def change_conversation(
    context: ContextDep, caller: CurrentCaller, conversation_id: RowId, update: ConversationUpdate
) -> AppConversation:
    """Change a conversation's title, visibility or repository. No automatic title replaces one set here."""
    with context.database.transaction() as session:
        conversation_queries.change(session, conversation_id, caller.id, update.columns())
        return _show(session, context, caller, [conversation_queries.get_shown(session, conversation_id, caller.id)])[0]


@router.delete("/{conversation_id}")
def delete_conversation(
    context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, conversation_id: RowId
) -> Success:
    """Delete a conversation with its sub-conversations.

    Its sandbox is deleted too if it was created for a conversation and has no other. The conversation disappears
    immediately; a worker then deletes it from the agent server. A start in progress is cancelled.
    """
    try:
        jobs = _delete(context, caller, queue, conversation_id)
    except Conflict:  # its start has succeeded in the meantime, so the conversation exists now
        jobs = _delete(context, caller, queue, conversation_id)
    queue.enqueue(*jobs)
    with suppress(StoreError):
        _delete_descendants(context, caller, queue, conversation_deletion.deleted_by(jobs))
    return Success()


def _delete(context: Context, caller: Caller, queue: JobQueue, conversation_id: str) -> list[Job]:
    with context.database.transaction() as session:
        return conversation_deletion.delete_conversation(session, conversation_id, caller.id, due_at=queue.due_at)


def _delete_descendants(context: Context, caller: Caller, queue: JobQueue, deleted: set[str]) -> None:
    """Delete those that the first transaction left. Those that are left after an error are deleted by a worker."""
    for _ in range(MAX_DELETIONS - 1):
        with context.database.transaction() as session:
            jobs = conversation_deletion.delete_children(session, deleted, caller.id, due_at=queue.due_at)
        if not jobs:
            return
        queue.enqueue(*jobs)
        deleted |= conversation_deletion.deleted_by(jobs)


def _search(
    context: Context, caller: Caller, filters: ConversationFilter, sort_order: str, page_id: str | None, limit: int
) -> Response:
    page = conversation_lists.search(
        context.database, caller.id, filters, sort_order=sort_order, page_id=page_id, limit=limit
    )
    return write_page(page, write_conversation, context.vault, caller.sandbox_urls)


def _show(
    session: Session, context: Context, caller: Caller, rows: list[tuple[Conversation, Sandbox]]
) -> list[AppConversation]:
    children = conversation_queries.children(session, [conversation.id for conversation, _ in rows], caller.id)
    return [
        serialize_conversation(
            conversation, sandbox, children.get(conversation.id, []), context.vault, caller.sandbox_urls
        )
        for conversation, sandbox in rows
    ]
