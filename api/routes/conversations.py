"""Conversations: start them, list them."""

from enum import StrEnum
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse
from sqlmodel import Session

from api.auth import Caller, ForUsers, Me
from api.context import Context, Here, Hurry, Wishes
from api.export import check_number, export
from api.idempotency import Once, OnlyOnce
from api.lists import Listing, ListRoute
from api.lookout import Subject
from api.patience import Patient, Wished
from api.query import Ids, Limit, PageId, RowId, Since
from api.refusals import refusals
from api.schemas.conversations import AppConversation, ConversationUpdate, show_conversation, write_conversation
from api.schemas.pages import write_count, write_page
from api.schemas.start_tasks import StartRequest, StartTaskInfo, answer_start_task, show_start_task
from api.schemas.wire import PageOf, Success
from shared import conversation_starts
from shared.conversation_starts import Wish
from shared.errors import NotFound
from shared.ids import parse_ids
from shared.jobs import Job
from shared.models import Conversation, Sandbox, StartTask
from shared.store import conversation_lists, conversations, deletions, start_tasks
from shared.store.conversation_lists import ConversationFilter

router = APIRouter(prefix="/app-conversations", tags=["conversations"], route_class=ForUsers)
lists = APIRouter(prefix=router.prefix, tags=router.tags, route_class=ListRoute)

MOST_IDS = 100


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
    """Which conversations are meant."""
    return ConversationFilter(
        title_contains=title_contains,
        created_from=created_from,
        created_before=created_before,
        updated_from=updated_from,
        updated_before=updated_before,
        sandbox_id=sandbox_id,
        with_sub_conversations=include_sub_conversations,
    )


Which = Annotated[ConversationFilter, Depends(read_filter)]


def start(here: Context, me: Caller, wishes: Wishes, once: Once, request: StartRequest) -> Wished[Any]:
    """Write the wish for a conversation, once."""
    needs_place = request.sandbox_id is None and request.parent_conversation_id is None
    wish = Wish(me.id, request.shown(), request.revealed(), wishes.due_at, here.settings.quotas)
    with here.database.transaction(needs_place=needs_place) as session:
        if (kept := once.find(session)) is not None:
            return _started(here, me, kept.document, kept.answer)
        start = conversation_starts.accept(session, here.vault, wish)
        answer = show_start_task(start.task, start.sandbox, start.paused)
        once.keep(session, answer)
    return _started(here, me, answer.model_dump(), answer, *start.jobs)


@router.post("", response_model=StartTaskInfo, responses=refusals(404, 409, 429))
async def start_conversation(
    here: Here, me: Me, wishes: Hurry, once: OnlyOnce, patience: Patient, request: StartRequest
) -> Any:
    """Wish for a conversation; the answer is the task that starts it. One that is waited for is READY or in ERROR."""
    return await patience.see(lambda: start(here, me, wishes, once, request).written(answer_start_task))


@lists.get("/search", response_model=PageOf[AppConversation])
async def search_conversations(
    which: Which,
    sort_order: ConversationOrder = ConversationOrder.CREATED_AT_DESC,
    page_id: PageId = None,
    limit: Limit = 100,
) -> Listing:
    """A page of the caller's conversations."""
    return Listing(lambda here, me: _search(here, me, which, sort_order, page_id, limit))


@lists.get("/count", response_model=int)
async def count_conversations(which: Which) -> Listing:
    """How many conversations a search with these filters finds."""
    return Listing(lambda here, me: write_count(conversation_lists.count(here.database, me.id, which)))


@router.get("", response_model=list[AppConversation | None] | PageOf[AppConversation])
def get_conversations(
    here: Here,
    me: Me,
    which: Which,
    ids: Annotated[Ids | None, Query()] = None,
    sort_order: ConversationOrder = ConversationOrder.CREATED_AT_DESC,
    page_id: PageId = None,
    limit: Limit = 100,
) -> Any:
    """The caller's conversations of those ids, in order, null for an unknown one; without ids, as a search."""
    if ids is None:
        return _search(here, me, which, sort_order, page_id, limit)
    hexes = parse_ids(ids, most=MOST_IDS)
    with here.database.reading() as session:
        found = conversations.get_many(session, hexes, me.id)
        shown = {item.id: item for item in _show(session, here, me, [row for row in found if row])}
    return [shown.get(conversation_id) for conversation_id in hexes]


@router.get("/{conversation_id}")
def get_conversation(here: Here, me: Me, conversation_id: RowId) -> AppConversation:
    """One of the caller's conversations (ours)."""
    with here.database.reading() as session:
        row = conversations.get_shown(session, conversation_id, me.id)
        return _show(session, here, me, [row])[0]


@router.get("/{conversation_id}/download", response_class=StreamingResponse, responses=refusals(413))
def download_conversation(here: Here, me: Me, conversation_id: RowId) -> StreamingResponse:
    """A zip archive of a conversation and its events, whether its sandbox is there or not."""
    with here.database.reading() as session:
        shown = _show(session, here, me, [conversations.get_shown(session, conversation_id, me.id)])[0]
    check_number(here.database, conversation_id, me.id)
    name = f"conversation_{UUID(conversation_id)}.zip"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(export(here.database, shown, me.id), media_type="application/zip", headers=headers)


@router.patch("/{conversation_id}")
def change_conversation(here: Here, me: Me, conversation_id: RowId, update: ConversationUpdate) -> AppConversation:
    """Change a conversation's title, publicity or repository; a title that is given stays."""
    with here.database.transaction() as session:
        conversations.change(session, conversation_id, me.id, update.columns())
        return _show(session, here, me, [conversations.get_shown(session, conversation_id, me.id)])[0]


@router.delete("/{conversation_id}")
def delete_conversation(here: Here, me: Me, wishes: Hurry, conversation_id: RowId) -> Success:
    """Delete a conversation with its sub-conversations, and its sandbox if that was made for one and has none left.

    It is gone at once; a worker sees to it that its agent server forgets it, too. One that is being started is
    cancelled.
    """
    with here.database.transaction() as session:
        jobs = deletions.delete_conversation(session, conversation_id, me.id, due_at=wishes.due_at)
    wishes.hurry(*jobs)
    return Success()


def _started(here: Context, me: Caller, shown: dict[str, Any], answer: Any, *jobs: Job) -> Wished[Any]:
    return Wished(answer, jobs, Subject(StartTask, shown["id"]), partial(_look, here, me, shown))


def _look(here: Context, me: Caller, shown: dict[str, Any]) -> StartTaskInfo:
    """How far the start has got by now."""
    with here.database.reading() as session:
        found = start_tasks.get_many(session, [shown["id"]], me.id)[0]
    if found is None:  # it went with its conversation
        raise NotFound("start task", shown["id"])
    return show_start_task(*found, origin=me.origin).model_copy(
        update={"paused_sandbox_ids": shown["paused_sandbox_ids"]}
    )


def _search(
    here: Context, me: Caller, which: ConversationFilter, sort_order: str, page_id: str | None, limit: int
) -> Response:
    page = conversation_lists.search(here.database, me.id, which, sort_order=sort_order, page_id=page_id, limit=limit)
    return write_page(page, write_conversation, here.vault, me.origin)


def _show(
    session: Session, here: Context, me: Caller, rows: list[tuple[Conversation, Sandbox]]
) -> list[AppConversation]:
    children = conversations.children(session, [conversation.id for conversation, _ in rows], me.id)
    return [
        show_conversation(conversation, sandbox, children.get(conversation.id, []), here.vault, me.origin)
        for conversation, sandbox in rows
    ]
