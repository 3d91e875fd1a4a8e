"""Webhooks: what agent servers report. A sandbox writes to its own conversations only; an error makes it send again."""

from fastapi import APIRouter

from api.errors.openapi import error_responses
from api.request.authentication import ForAgentServers, FromSandbox
from api.request.context import Context, ContextDep
from api.request.jobs import JobQueueDep
from api.request.webhook_body import CONVERSATION, EVENTS, ToldConversation, ToldEvents
from api.schemas.v1.wire_types import Success
from shared.conversations import webhook_ingest
from shared.conversations.known_secrets import redact_for
from shared.conversations.webhook_reports import EventReport
from shared.ids import parse_id
from shared.models import Sandbox

router = APIRouter(prefix="/webhooks", tags=["webhooks"], route_class=ForAgentServers)


@router.post("/conversations", responses=error_responses(404), openapi_extra=CONVERSATION)
def receive_conversation(context: ContextDep, sandbox: FromSandbox, told: ToldConversation) -> Success:
    """A conversation was created, paused, renamed: take over what is new (ConversationInfo)."""
    with context.database.transaction() as session:
        webhook_ingest.record_conversation(session, sandbox, told)
    return Success()


@router.post("/events/{conversation_id}", openapi_extra=EVENTS)
def receive_events(
    context: ContextDep, sandbox: FromSandbox, queue: JobQueueDep, conversation_id: str, told: ToldEvents
) -> Success:
    """Events happened: store each once, and take over what they say of their conversation."""
    awaited_row = parse_id(conversation_id)
    told = _hide_secrets(context, sandbox, awaited_row, told)
    with context.database.transaction() as session:
        job = webhook_ingest.record_events(session, sandbox, awaited_row, told, due_at=queue.due_at)
    if job is not None:
        queue.enqueue(job)
    return Success()


def _hide_secrets(
    context: Context, sandbox: Sandbox, conversation_id: str, told: list[EventReport]
) -> list[EventReport]:
    """The events, with the secrets of owner and conversation hidden in errors: providers quote keys they refuse."""
    if sandbox.owner_id is None or not any(event.is_error for event in told):
        return told
    with context.database.reading() as session:
        redact = redact_for(session, context.vault, sandbox.owner_id, conversation_id)
    return [event.redacted(redact) if event.is_error else event for event in told]
