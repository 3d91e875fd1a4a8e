"""V0's operations for conversations, through V1's in `conversations` and `sandboxes`."""

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse, Response

from api.errors.openapi import error_responses
from api.request.authentication import Caller, CurrentCaller
from api.request.command_options import IdempotencyOption, WaitOption
from api.request.context import Context, ContextDep, JobQueueDep
from api.request.query_params import Limit, PageId, RowId
from api.routes.v0.conversation_starts import (
    NEWEST_FIRST,
    find_start,
    find_unfinished,
    list_starting,
    merge,
    require_started,
)
from api.routes.v0.legacy_route import LegacyRoute, replaced_by
from api.routes.v1 import conversations as v1
from api.routes.v1 import sandboxes
from api.schemas.v0.conversations import (
    ConversationAnswer,
    ConversationInfo,
    ConversationResults,
    NewConversation,
    TitleUpdate,
    serialize_start,
    serialize_starting,
    serialize_v0,
)
from api.schemas.v1.conversations import serialize_conversation
from api.schemas.v1.start_tasks import StartTaskInfo, Trigger
from shared.conversations import lists as conversation_lists
from shared.conversations import queries as conversation_queries
from shared.conversations import start_tasks
from shared.conversations.lists import ConversationFilter
from shared.errors import NotFound
from shared.models import StartTask
from shared.observability.correlation import request_id

router = APIRouter(prefix="/conversations", tags=["conversations (V0)"], route_class=LegacyRoute)

PATH = "/api/v1/app-conversations"
ONE = replaced_by(PATH + "/{conversation_id}")


@router.post("", response_model=ConversationAnswer, responses=error_responses(404, 409, 429), **replaced_by(PATH))
async def start_conversation(
    context: ContextDep,
    caller: CurrentCaller,
    queue: JobQueueDep,
    idempotent: IdempotencyOption,
    wait: WaitOption,
    request: NewConversation,
) -> Any:
    """Start a conversation. The response holds its id; it is STARTING until it can take messages."""
    # V1 reports a start that failed immediately as a 200, which may be stored; here it is a 400.
    successes = idempotent.where(lambda task: serialize_start(task)[0] < 400)
    found = await v1.start_conversation(context, caller, queue, successes, wait, request.as_v1())
    # V1's operation may return a response that is encoded already.
    task = StartTaskInfo.model_validate_json(bytes(found.body)) if isinstance(found, Response) else found
    status, response = serialize_start(task)
    if status >= 400:
        response["request_id"] = request_id.get()
    return wait.add_headers(JSONResponse(response, status))


@router.get("", **replaced_by(f"{PATH}/search"))
def list_conversations(
    context: ContextDep,
    caller: CurrentCaller,
    page_id: PageId = None,
    limit: Limit = 20,
    selected_repository: Annotated[str | None, Query(max_length=500)] = None,
    conversation_trigger: Trigger | None = None,
    include_sub_conversations: bool = False,
) -> ConversationResults:
    """A page of the caller's conversations, newest first, including those that are being started."""
    filters = ConversationFilter(
        repository=selected_repository,
        trigger=conversation_trigger,
        with_sub_conversations=include_sub_conversations,
    )
    # Read first: a conversation that becomes READY concurrently is found twice rather than never.
    starting = list_starting(context, caller, filters, page_id)
    page = conversation_lists.search(
        context.database, caller.id, filters, sort_order=NEWEST_FIRST, page_id=page_id, limit=limit
    )
    shown_to = context.vault, caller.sandbox_urls
    shown = [serialize_conversation(*conversation_lists.read_text(text), *shown_to) for text in page.items]
    return merge([serialize_v0(item) for item in shown], page.next_page_id, starting, limit)


@router.get("/{conversation_id}", **ONE)
def get_conversation(context: ContextDep, caller: CurrentCaller, conversation_id: RowId) -> ConversationInfo | None:
    """One of the caller's conversations, even while it is being started; null for an unknown one."""
    task = find_start(context, caller, conversation_id)
    if task is not None:
        return serialize_starting(task)
    try:
        return serialize_v0(v1.get_conversation(context, caller, conversation_id))
    except NotFound:
        return None


@router.patch("/{conversation_id}", responses=error_responses(409), **ONE)
def change_conversation(
    context: ContextDep, caller: CurrentCaller, conversation_id: RowId, update: TitleUpdate
) -> bool:
    """Set a conversation's title, even while it is being started. No automatic title replaces it."""
    with context.database.transaction() as session:
        if start_tasks.rename(session, conversation_id, caller.id, update.title):
            return True
    # A separate transaction, to avoid deadlocks: a deletion locks the conversation before its start task.
    with context.database.transaction() as session:
        conversation_queries.change(session, conversation_id, caller.id, {"title": update.title})
    return True


@router.delete("/{conversation_id}", **ONE)
def delete_conversation(context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, conversation_id: RowId) -> bool:
    """Delete one of the caller's conversations, as V1 does; false: the caller has no such conversation."""
    try:
        return v1.delete_conversation(context, caller, queue, conversation_id).success
    except NotFound:
        return False


@router.post("/{conversation_id}/start", responses=error_responses(409, 429), **replaced_by("/api/v1/sandboxes"))
async def resume_conversation(
    context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, wait: WaitOption, conversation_id: RowId
) -> ConversationAnswer:
    """Resume the conversation's sandbox. V0's body, the list of set providers, is not needed.

    For a conversation that is being started this changes nothing: RUNNING is the desired state already.
    """
    if task := await context.run_in_turn(find_unfinished, context, caller, conversation_id):
        return _respond_for_start(task)
    sandbox_id = await context.run_in_turn(_sandbox_of, context, caller, conversation_id)
    await sandboxes.resume_sandbox(context, caller, queue, wait, sandbox_id)
    return await context.run_in_turn(_respond, context, caller, conversation_id)


@router.post("/{conversation_id}/stop", responses=error_responses(409), **replaced_by("/api/v1/sandboxes"))
async def stop_conversation(
    context: ContextDep, caller: CurrentCaller, queue: JobQueueDep, wait: WaitOption, conversation_id: RowId
) -> ConversationAnswer:
    """Pause the conversation's sandbox.

    A conversation that is being started can't be stopped, since its start could not continue later. It can be deleted.
    """
    await context.run_in_turn(require_started, context, caller, conversation_id, "it can be stopped")
    sandbox_id = await context.run_in_turn(_sandbox_of, context, caller, conversation_id)
    await sandboxes.pause_sandbox(context, caller, queue, wait, sandbox_id)
    return await context.run_in_turn(_respond, context, caller, conversation_id)


def _sandbox_of(context: Context, caller: Caller, conversation_id: str) -> str:
    return v1.get_conversation(context, caller, conversation_id).sandbox_id


def _respond_for_start(task: StartTask) -> ConversationAnswer:
    shown = serialize_starting(task)
    return ConversationAnswer(conversation_id=shown.conversation_id, conversation_status=shown.status)


def _respond(context: Context, caller: Caller, conversation_id: str) -> ConversationAnswer:
    shown = serialize_v0(v1.get_conversation(context, caller, conversation_id))
    return ConversationAnswer(conversation_id=shown.conversation_id, conversation_status=shown.status)
