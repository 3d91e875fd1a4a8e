"""Messages for conversations that can't be told yet: kept, and delivered by a worker, in order."""

from typing import Any

from fastapi import APIRouter
from sqlmodel import Session

from api.auth import Caller, ForUsers, Me
from api.context import Here, Hurry
from api.idempotency import OnlyOnce
from api.refusals import refusals
from api.schemas.messages import PendingMessageInfo, PendingMessageResponse, QueuedMessage, show_pending_message
from shared.ids import parse_id
from shared.store import pending_messages

router = APIRouter(
    prefix="/conversations/{conversation_id}/pending-messages", tags=["conversations"], route_class=ForUsers
)

# What stands before the id of a start task, where the conversation's own is not known yet.
OF_START = "task-"


@router.post("", status_code=201, response_model=PendingMessageResponse, responses=refusals(409, 410, 429))
def queue_message(
    here: Here, me: Me, wishes: Hurry, once: OnlyOnce, conversation_id: str, message: QueuedMessage
) -> Any:
    """Say something to the agent as soon as it can hear it: when its start is READY, and its sandbox runs.

    The id is that of the conversation, or `task-` and that of its start task. Up to ten messages wait.
    """
    content = message.model_dump(mode="json")["content"]
    with here.database.transaction() as session:
        if (kept := once.find(session)) is not None:
            return kept.answer
        subject = _find(session, me, conversation_id)
        queued = pending_messages.add(session, subject, me.id, content, due_at=wishes.due_at)
        answer = PendingMessageResponse(id=queued.id, queued=True, position=queued.position)
        once.keep(session, answer, status=201)
    if queued.job is not None:
        wishes.hurry(queued.job)
    return answer


@router.get("")
def list_messages(here: Here, me: Me, conversation_id: str) -> list[PendingMessageInfo]:
    """What waits to be said, in order, and what the agent server has refused (ours)."""
    with here.database.reading() as session:
        found = pending_messages.list_pending(session, _find(session, me, conversation_id), me.id)
    return [show_pending_message(message) for message in found]


def _find(session: Session, me: Caller, text: str) -> str:
    if not text.startswith(OF_START):
        return parse_id(text)
    return pending_messages.conversation_of_start(session, parse_id(text.removeprefix(OF_START)), me.id)
