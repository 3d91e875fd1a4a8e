"""Webhooks: what agent servers report. A sandbox writes to its own conversations only; an error makes it send again."""

from fastapi import APIRouter

from api.auth import ForAgentServers, FromSandbox
from api.context import Context, Here, Hurry
from api.refusals import refusals
from api.schemas.wire import Success
from api.webhook_bodies import CONVERSATION, EVENTS, ToldConversation, ToldEvents
from shared.ids import parse_id
from shared.models import Sandbox
from shared.reports import EventReport
from shared.store import reports
from shared.store.known_secrets import redact_for

router = APIRouter(prefix="/webhooks", tags=["webhooks"], route_class=ForAgentServers)


@router.post("/conversations", responses=refusals(404), openapi_extra=CONVERSATION)
def receive_conversation(here: Here, sandbox: FromSandbox, told: ToldConversation) -> Success:
    """A conversation was created, paused, renamed: take over what is new (ConversationInfo)."""
    with here.database.transaction() as session:
        reports.record_conversation(session, sandbox, told)
    return Success()


@router.post("/events/{conversation_id}", openapi_extra=EVENTS)
def receive_events(here: Here, sandbox: FromSandbox, wishes: Hurry, conversation_id: str, told: ToldEvents) -> Success:
    """Events happened: store each once, and take over what they say of their conversation."""
    subject = parse_id(conversation_id)
    told = _hide_secrets(here, sandbox, subject, told)
    with here.database.transaction() as session:
        job = reports.record_events(session, sandbox, subject, told, due_at=wishes.due_at)
    if job is not None:
        wishes.hurry(job)
    return Success()


def _hide_secrets(here: Context, sandbox: Sandbox, conversation_id: str, told: list[EventReport]) -> list[EventReport]:
    """The events, with the secrets of owner and conversation hidden in errors: providers quote keys they refuse."""
    if sandbox.owner_id is None or not any(event.is_error for event in told):
        return told
    with here.database.reading() as session:
        redact = redact_for(session, here.vault, sandbox.owner_id, conversation_id)
    return [event.redacted(redact) if event.is_error else event for event in told]
