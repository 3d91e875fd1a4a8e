"""Messages for conversations that can't take them yet: stored, and delivered in order by a worker."""

from typing import Any

from fastapi import APIRouter

from api.errors.openapi import error_responses
from api.request.authentication import Caller, CurrentCaller, UserRoute
from api.request.command_options import IdempotencyOption
from api.request.context import ContextDep, JobQueueDep
from api.schemas.v1.pending_messages import PendingMessageInfo, PendingMessageResponse, QueuedMessage
from shared.conversations import pending_messages
from shared.db.database import Session
from shared.ids import parse_id

router = APIRouter(
    prefix="/conversations/{conversation_id}/pending-messages", tags=["conversations"], route_class=UserRoute
)

# The prefix of a start task's id, which clients send while they do not know the conversation's id.
START_PREFIX = "task-"


@router.post("", status_code=201, response_model=PendingMessageResponse, responses=error_responses(409, 410, 429))
def queue_message(
    context: ContextDep,
    caller: CurrentCaller,
    queue: JobQueueDep,
    idempotent: IdempotencyOption,
    conversation_id: str,
    message: QueuedMessage,
) -> Any:
    """Queue a message for the agent. It is delivered when the start is READY and the sandbox runs.

    The id is the conversation's, or `task-` followed by its start task's. At most ten messages are queued.
    """
    content = message.model_dump(mode="json")["content"]
    with context.database.transaction() as session:
        if (stored := idempotent.find(session)) is not None:
            return stored.response
        hex_id = _find(session, caller, conversation_id)
        queued = pending_messages.add(session, hex_id, caller.id, content, due_at=queue.due_at)
        response = PendingMessageResponse(id=queued.id, queued=True, position=queued.position)
        idempotent.keep(session, response, status=201)
    if queued.job is not None:
        queue.enqueue(queued.job)
    return response


@router.get("")
def list_messages(context: ContextDep, caller: CurrentCaller, conversation_id: str) -> list[PendingMessageInfo]:
    """The queued messages in order, and the last ten that the agent server refused (Agent Workspace extension).

    The oldest are left out if all together have more than 8 MiB.
    """
    with context.database.reading() as session:
        found = pending_messages.list_pending(session, _find(session, caller, conversation_id), caller.id)
    return [PendingMessageInfo.model_validate(message, from_attributes=True) for message in found]


def _find(session: Session, caller: Caller, text: str) -> str:
    if not text.startswith(START_PREFIX):
        return parse_id(text)
    return pending_messages.conversation_of_start(session, parse_id(text.removeprefix(START_PREFIX)), caller.id)
