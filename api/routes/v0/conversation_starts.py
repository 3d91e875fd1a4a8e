"""V0's conversations while they start: a start task exists, but no conversation yet."""

from api.request.authentication import Caller
from api.request.context import Context
from api.schemas.v0.conversations import ConversationInfo, ConversationResults, serialize_starting
from shared.conversations import lists as conversation_lists
from shared.conversations import start_tasks
from shared.conversations.lists import ConversationFilter
from shared.errors import Conflict
from shared.ids import parse_id
from shared.models import StartTask
from shared.sql.pagination import decode_page_id, encode_page_id
from shared.states import Stage

NEWEST_FIRST = "CREATED_AT_DESC"


def find_start(context: Context, caller: Caller, conversation_id: str) -> StartTask | None:
    """Find the unfinished or failed start task of the caller's conversation.

    Returns:
        None if the conversation was started, or the caller has no such start.

    Raises:
        Invalid: `conversation_id` is no valid id.
    """
    with context.database.reading() as session:
        task = start_tasks.find_for_conversation(session, parse_id(conversation_id))
    if task is None or task.owner_id != caller.id or task.cancelled_at is not None or task.stage == Stage.READY:
        return None
    return task


def find_unfinished(context: Context, caller: Caller, conversation_id: str) -> StartTask | None:
    """Find the unfinished start task of the caller's conversation; None: as for `find_start`.

    Raises:
        Invalid: `conversation_id` is no valid id.
        Conflict: the start has failed.
    """
    task = find_start(context, caller, conversation_id)
    if task is not None and task.stage == Stage.ERROR:
        raise Conflict(f"the conversation's start has failed: {task.detail}")
    return task


def require_started(context: Context, caller: Caller, conversation_id: str, what: str) -> None:
    """Refuse an operation on a conversation that is not started. `what` ends the error message.

    Raises:
        Invalid: `conversation_id` is no valid id.
        Conflict: the conversation is being started, or its start has failed.
    """
    if find_unfinished(context, caller, conversation_id) is not None:
        raise Conflict(f"the conversation is being started: {what} as soon as it runs")


def list_starting(
    context: Context, caller: Caller, filters: ConversationFilter, page_id: str | None
) -> list[ConversationInfo]:
    """The caller's conversations that are being started, without those on earlier pages.

    The oldest are left out if their requests together exceed `MAX_PAGE_BYTES`.

    Raises:
        Invalid: `page_id` is not a page id of this list.
    """
    last = None if page_id is None else decode_page_id(page_id, conversation_lists.SORT_ORDERS[NEWEST_FIRST])
    with context.database.reading() as session:
        tasks = [task for task in conversation_lists.list_starting(session, caller.id) if _matches(task, filters)]
    return [
        serialize_starting(task) for task in tasks if last is None or (task.created_at, task.conversation_id) < last
    ]


def merge(
    started: list[ConversationInfo], next_page_id: str | None, starting: list[ConversationInfo], limit: int
) -> ConversationResults:
    """Merge both lists into one page, newest first. `started` is a page, and `next_page_id` is the id of the next."""
    known = {one.conversation_id for one in started}
    found = started + [one for one in starting if one.conversation_id not in known]
    found.sort(key=lambda one: (one.created_at, one.conversation_id), reverse=True)
    results = found[:limit]
    if len(found) > limit or next_page_id is not None:
        order, last = conversation_lists.SORT_ORDERS[NEWEST_FIRST], results[-1]
        next_page_id = encode_page_id(order, last.created_at, last.conversation_id)
    return ConversationResults(results=results, next_page_id=next_page_id)


def _matches(task: StartTask, filters: ConversationFilter) -> bool:
    request = task.request
    return (
        filters.repository in (None, request.get("selected_repository"))
        and filters.trigger in (None, request.get("trigger"))
        and (filters.with_sub_conversations or request.get("parent_conversation_id") is None)
    )
