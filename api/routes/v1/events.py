"""Events of conversations, read from the database: they outlive their sandbox."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response

from api.errors.openapi import error_responses
from api.request.authentication import CurrentCaller, UserRoute
from api.request.context import ContextDep
from api.request.query_params import Ids, Limit, PageId, Since
from api.schemas.v1.events import EventKind, EventOrder, serialize_event_page, serialize_events
from api.schemas.v1.fields import PageOf
from shared.conversations import events
from shared.conversations.events import EventFilter
from shared.ids import check_count, parse_id

router = APIRouter(prefix="/conversation/{conversation_id}/events", tags=["events"], route_class=UserRoute)


def read_filter(
    kind: Annotated[EventKind | None, Query(alias="kind__eq")] = None,
    timestamp_from: Annotated[Since | None, Query(alias="timestamp__gte")] = None,
    timestamp_before: Annotated[Since | None, Query(alias="timestamp__lt")] = None,
) -> EventFilter:
    """Read the filter of a search from the query."""
    return EventFilter(kind, timestamp_from, timestamp_before)


FilterOption = Annotated[EventFilter, Depends(read_filter)]


@router.get("/search", response_model=PageOf[dict[str, Any]])
def search_events(
    context: ContextDep,
    caller: CurrentCaller,
    conversation_id: str,
    filters: FilterOption,
    sort_order: EventOrder = EventOrder.TIMESTAMP,
    page_id: PageId = None,
    limit: Limit = 100,
) -> Response:
    """A page of a conversation's events; empty if the caller has no such conversation."""
    with context.database.reading() as session:
        page = events.search(
            session,
            parse_id(conversation_id),
            caller.id,
            filters,
            descending=sort_order == EventOrder.TIMESTAMP_DESC,
            page_id=page_id,
            limit=limit,
        )
    return serialize_event_page(page)


@router.get("/count")
def count_events(context: ContextDep, caller: CurrentCaller, conversation_id: str, filters: FilterOption) -> int:
    """The number of events that a search with these filters finds."""
    with context.database.reading() as session:
        return events.count(session, parse_id(conversation_id), caller.id, filters)


@router.get("", response_model=list[dict[str, Any] | None], responses=error_responses(413))
def get_events(
    context: ContextDep, caller: CurrentCaller, conversation_id: str, ids: Annotated[Ids, Query(alias="id")]
) -> Response:
    """The conversation's events with these ids, in order; null for an unknown one."""
    check_count(ids)
    with context.database.reading() as session:
        return serialize_events(events.get_many(session, parse_id(conversation_id), caller.id, ids))
