"""Conversations: start them, list them."""

from enum import StrEnum
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from sqlmodel import Session

from api.auth import Caller, ForUsers, Me
from api.context import Context, Here, Hurry
from api.idempotency import OnlyOnce
from api.query import Ids, Limit, PageId, Since
from api.schemas.conversations import AppConversation, show_conversation
from api.schemas.start_tasks import StartRequest, StartTaskInfo, show_start_task
from api.schemas.wire import PageOf
from shared import conversation_starts
from shared.conversation_starts import Wish
from shared.ids import parse_id, parse_ids
from shared.models import Conversation, Sandbox
from shared.store import conversations
from shared.store.conversations import ConversationFilter

router = APIRouter(prefix="/app-conversations", tags=["conversations"], route_class=ForUsers)

MOST_IDS = 100


class ConversationOrder(StrEnum):
    """The orders in which conversations are listed."""

    CREATED_AT = "CREATED_AT"
    CREATED_AT_DESC = "CREATED_AT_DESC"
    UPDATED_AT = "UPDATED_AT"
    UPDATED_AT_DESC = "UPDATED_AT_DESC"
    TITLE = "TITLE"
    TITLE_DESC = "TITLE_DESC"


def read_filter(
    title_contains: Annotated[str | None, Query(alias="title__contains", max_length=500)] = None,
    created_from: Annotated[Since | None, Query(alias="created_at__gte")] = None,
    created_before: Annotated[Since | None, Query(alias="created_at__lt")] = None,
    updated_from: Annotated[Since | None, Query(alias="updated_at__gte")] = None,
    updated_before: Annotated[Since | None, Query(alias="updated_at__lt")] = None,
    sandbox_id: Annotated[str | None, Query(alias="sandbox_id__eq", max_length=256)] = None,
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


@router.post("", response_model=StartTaskInfo)
def start_conversation(here: Here, me: Me, wishes: Hurry, once: OnlyOnce, request: StartRequest) -> Any:
    """Wish for a conversation; the answer is the task that starts it."""
    wish = Wish(me.id, request.shown(), request.revealed(), wishes.due_at, here.settings.quotas)
    with here.database.transaction() as session:
        if (answered := once.find(session)) is not None:
            return answered
        start = conversation_starts.accept(session, here.vault, wish)
        answer = show_start_task(start.task, start.sandbox, start.paused)
        once.keep(session, answer)
    wishes.hurry(*start.jobs)
    return answer


@router.get("/search")
def search_conversations(
    here: Here,
    me: Me,
    which: Which,
    sort_order: ConversationOrder = ConversationOrder.CREATED_AT_DESC,
    page_id: PageId = None,
    limit: Limit = 100,
) -> PageOf[AppConversation]:
    """A page of the caller's conversations."""
    with here.database.reading() as session:
        page = conversations.search(session, me.id, which, sort_order=sort_order, page_id=page_id, limit=limit)
        items = _show(session, here, me, page.items)
    return PageOf(items=items, next_page_id=page.next_page_id)


@router.get("/count")
def count_conversations(here: Here, me: Me, which: Which) -> int:
    """How many conversations a search with these filters finds."""
    with here.database.reading() as session:
        return conversations.count(session, me.id, which)


@router.get("")
def get_conversations(
    here: Here,
    me: Me,
    which: Which,
    ids: Annotated[Ids | None, Query()] = None,
    sort_order: ConversationOrder = ConversationOrder.CREATED_AT_DESC,
    page_id: PageId = None,
    limit: Limit = 100,
) -> list[AppConversation | None] | PageOf[AppConversation]:
    """The caller's conversations of those ids, in order, null for an unknown one; without ids, as a search."""
    if ids is None:
        return search_conversations(here, me, which, sort_order, page_id, limit)
    hexes = parse_ids(ids, most=MOST_IDS)
    with here.database.reading() as session:
        found = conversations.get_many(session, hexes, me.id)
        shown = {item.id: item for item in _show(session, here, me, [row for row in found if row])}
    return [shown.get(conversation_id) for conversation_id in hexes]


@router.get("/{conversation_id}")
def get_conversation(here: Here, me: Me, conversation_id: str) -> AppConversation:
    """One of the caller's conversations (ours)."""
    with here.database.reading() as session:
        row = conversations.get_shown(session, parse_id(conversation_id), me.id)
        return _show(session, here, me, [row])[0]


def _show(
    session: Session, here: Context, me: Caller, rows: list[tuple[Conversation, Sandbox]]
) -> list[AppConversation]:
    children = conversations.children(session, [conversation.id for conversation, _ in rows], me.id)
    return [
        show_conversation(conversation, sandbox, children.get(conversation.id, []), here.vault)
        for conversation, sandbox in rows
    ]
