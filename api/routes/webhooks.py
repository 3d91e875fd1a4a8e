"""Webhooks: what agent servers report. A sandbox writes to its own conversations only; an error makes it send again."""

from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field, PlainValidator

from api.auth import ForAgentServers, FromSandbox
from api.context import Here, Hurry
from api.refusals import refusals
from api.schemas.wire import Success
from shared.ids import parse_id
from shared.reports import ConversationReport, EventReport, read_conversation, read_event
from shared.store import reports

router = APIRouter(prefix="/webhooks", tags=["webhooks"], route_class=ForAgentServers)

# More than an agent server keeps in its queue.
MOST_EVENTS = 20_000
Told = Annotated[ConversationReport, PlainValidator(read_conversation, json_schema_input_type=dict[str, Any])]
ToldEvent = Annotated[EventReport, PlainValidator(read_event, json_schema_input_type=dict[str, Any])]


@router.post("/conversations", responses=refusals(404))
def receive_conversation(here: Here, sandbox: FromSandbox, told: Told) -> Success:
    """A conversation was created, paused, renamed: take over what is new (ConversationInfo)."""
    with here.database.transaction() as session:
        reports.record_conversation(session, sandbox, told)
    return Success()


@router.post("/events/{conversation_id}")
def receive_events(
    here: Here,
    sandbox: FromSandbox,
    wishes: Hurry,
    conversation_id: str,
    told: Annotated[list[ToldEvent], Field(max_length=MOST_EVENTS)],
) -> Success:
    """Events happened: store each once, and take over what they say of their conversation."""
    subject = parse_id(conversation_id)
    with here.database.transaction() as session:
        job = reports.record_events(session, sandbox, subject, told, due_at=wishes.due_at)
    if job is not None:
        wishes.hurry(job)
    return Success()
