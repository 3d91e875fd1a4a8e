"""Messages for conversations that can't be told yet: kept, and delivered by a worker, in order."""

from typing import Any

from fastapi import APIRouter
from sqlmodel import Session

from api.errors.openapi import error_responses
from api.request.authentication import Caller, CurrentCaller, ForUsers
from api.request.context import ContextDep
from api.request.idempotency import IdempotencyOption
from api.request.jobs import JobQueueDep
from api.schemas.v1.messages import PendingMessageInfo, PendingMessageResponse, QueuedMessage, show_pending_message
from shared.conversations import pending_messages
from shared.ids import parse_id

router = APIRouter(
    prefix="/conversations/{conversation_id}/pending-messages", tags=["conversations"], route_class=ForUsers
)

# What stands before the id of a start task, where the conversation's own is not known yet.
OF_START = "task-"


@router.post("", status_code=201, response_model=PendingMessageResponse, responses=error_responses(409, 410, 429))
def queue_message(
    context: ContextDep,
    caller: CurrentCaller,
    queue: JobQueueDep,
    idempotent: IdempotencyOption,
    conversation_id: str,
    message: QueuedMessage,
) -> Any:
    """Say something to the agent as soon as it can hear it: when its start is READY, and its sandbox runs.

    The id is that of the conversation, or `task-` and that of its start task. Up to ten messages wait.
    """
    content = message.model_dump(mode="json")["content"]
    with context.database.transaction() as session:
        if (kept := idempotent.find(session)) is not None:
            return kept.answer
        awaited_row = _find(session, caller, conversation_id)
        queued = pending_messages.add(session, awaited_row, caller.id, content, due_at=queue.due_at)
        answer = PendingMessageResponse(id=queued.id, queued=True, position=queued.position)
        idempotent.keep(session, answer, status=201)
    if queued.job is not None:
        queue.enqueue(queued.job)
    return answer


@router.get("")
def list_messages(context: ContextDep, caller: CurrentCaller, conversation_id: str) -> list[PendingMessageInfo]:
    """What waits to be said, in order, and what the agent server has refused (ours)."""
    with context.database.reading() as session:
        found = pending_messages.list_pending(session, _find(session, caller, conversation_id), caller.id)
    return [show_pending_message(message) for message in found]


def _find(session: Session, caller: Caller, text: str) -> str:
    if not text.startswith(OF_START):
        return parse_id(text)
    return pending_messages.conversation_of_start(session, parse_id(text.removeprefix(OF_START)), caller.id)
