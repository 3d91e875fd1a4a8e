"""Start tasks: how far the starts of conversations have got."""

from enum import StrEnum
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Response

from api.auth import Caller, ForUsers, Me
from api.context import Context, Here, Hurry, Wishes
from api.lookout import Subject
from api.patience import Patient, Wished
from api.query import Ids, Limit, PageId, RowId, Since
from api.refusals import refusals
from api.schemas.pages import write_items, write_list
from api.schemas.start_tasks import StartTaskInfo, answer_start_task, show_start_task, write_start_task
from api.schemas.wire import PageOf
from shared.errors import NotFound
from shared.ids import parse_ids
from shared.models import Sandbox, StartTask
from shared.states import Stage
from shared.store import start_tasks

router = APIRouter(prefix="/app-conversations/start-tasks", tags=["start tasks"], route_class=ForUsers)

MOST_IDS = 100
OfConversation = Annotated[
    RowId | None, Query(alias="conversation_id__eq", description="The conversation that was started")
]
OfStage = Annotated[Stage | None, Query(alias="status__eq", description="Those of one status (ours)")]
CreatedFrom = Annotated[Since | None, Query(alias="created_at__gte")]


class StartTaskOrder(StrEnum):
    """The orders in which start tasks are listed."""

    CREATED_AT = "CREATED_AT"
    CREATED_AT_DESC = "CREATED_AT_DESC"
    UPDATED_AT = "UPDATED_AT"
    UPDATED_AT_DESC = "UPDATED_AT_DESC"


# What is shown has up to 4 MB for each task: it is written in a thread.
@router.get("/search", response_model=PageOf[StartTaskInfo])
def search_start_tasks(
    here: Here,
    me: Me,
    conversation_id: OfConversation = None,
    created_from: CreatedFrom = None,
    stage: OfStage = None,
    sort_order: StartTaskOrder = StartTaskOrder.CREATED_AT_DESC,
    page_id: PageId = None,
    limit: Limit = 100,
) -> Response:
    """A page of the caller's start tasks; a short one where these are large."""
    with here.database.reading() as session:
        page = start_tasks.search(
            session,
            me.id,
            conversation_id=conversation_id,
            created_from=created_from,
            stage=stage,
            sort_order=sort_order,
            page_id=page_id,
            limit=limit,
        )
    return write_items((_write(me, row) for row in page.items), page.next_page_id)


@router.get("/count")
def count_start_tasks(
    here: Here,
    me: Me,
    conversation_id: OfConversation = None,
    created_from: CreatedFrom = None,
    stage: OfStage = None,
) -> int:
    """How many start tasks a search with these filters finds."""
    with here.database.reading() as session:
        return start_tasks.count(
            session, me.id, conversation_id=conversation_id, created_from=created_from, stage=stage
        )


@router.get("", response_model=list[StartTaskInfo | None], responses=refusals(413))
def get_start_tasks(here: Here, me: Me, ids: Annotated[Ids, Query()]) -> Response:
    """The caller's start tasks of those ids, in order; null for an unknown one."""
    hexes = parse_ids(ids, most=MOST_IDS)
    with here.database.reading() as session:
        found = start_tasks.get_many(session, hexes, me.id)
    return write_list(_write(me, row) for row in found)


@router.get("/{task_id}", response_model=StartTaskInfo)
def get_start_task(here: Here, me: Me, task_id: RowId) -> Response:
    """One of the caller's start tasks (ours)."""
    return answer_start_task(_look(here, me, task_id))


@router.post("/{task_id}/cancel", response_model=StartTaskInfo, responses=refusals(409))
async def cancel_start_task(here: Here, me: Me, wishes: Hurry, patience: Patient, task_id: RowId) -> Response:
    """Withdraw a start that is on its way (ours): it ends in ERROR at its next step, and what was made for it goes."""
    return await patience.see(partial(_cancel, here, me, wishes, task_id))


def _cancel(here: Context, me: Caller, wishes: Wishes, task_id: str) -> Wished[Response]:
    with here.database.transaction() as session:
        withdrawn = start_tasks.cancel(session, task_id, me.id, due_at=wishes.due_at)
        answer = show_start_task(*withdrawn, origin=me.origin)
    look = partial(_look, here, me, task_id)
    return Wished(answer, (withdrawn.job,), Subject(StartTask, task_id), look).written(answer_start_task)


def _write(me: Caller, row: tuple[StartTask, Sandbox | None] | None) -> bytes:
    return b"null" if row is None else write_start_task(show_start_task(*row, origin=me.origin))


def _look(here: Context, me: Caller, task_id: str) -> StartTaskInfo:
    with here.database.reading() as session:
        [found] = start_tasks.get_many(session, [task_id], me.id)
    if found is None:
        raise NotFound("start task", task_id)
    return show_start_task(*found, origin=me.origin)
