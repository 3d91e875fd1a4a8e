"""Webhooks: reports of agent servers.

A sandbox writes to its own conversations only. The agent server repeats a report that gets an error response. So a
report of a former container, which its sandbox left behind on a lost node, is dropped and gets a success.
"""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Depends, Header

from api.errors.openapi import error_responses
from api.request.authentication import AgentServerRoute, CurrentSandbox
from api.request.context import Context, ContextDep, JobQueue, JobQueueDep
from api.request.webhook_body import CONVERSATION, EVENTS, ReportedConversation, ReportedEvents
from api.schemas.v1.fields import Success
from shared.conversations import webhook_ingest
from shared.conversations.known_secrets import redact_for
from shared.conversations.webhook_reports import EventReport
from shared.errors import QuotaExceeded
from shared.ids import parse_id
from shared.models import Sandbox
from shared.observability import metrics
from shared.sandboxes import deadlines

# Max events in one transaction, which keeps other writers waiting, on SQLite all of them. A report that ends in an
# error is repeated, and events that are stored already are not stored again.
MAX_STORED_AT_ONCE = 500


async def take_turn(context: ContextDep) -> AsyncIterator[None]:
    """Wait until fewer than `THREADS_OF_WEBHOOKS` of the owner's webhooks run in threads; count this one until it ends.

    It comes last among a route's dependencies: a sandbox must not wait for another one's body.
    """
    async with context.limits.webhook_threads.of_caller():
        yield


OwnersTurn = Annotated[None, Depends(take_turn, scope="function")]
ReportingNode = Annotated[str | None, Header(alias=webhook_ingest.NODE_HEADER, include_in_schema=False)]

router = APIRouter(prefix="/webhooks", tags=["webhooks"], route_class=AgentServerRoute)


@router.post("/conversations", responses=error_responses(404), openapi_extra=CONVERSATION)
def receive_conversation(
    context: ContextDep,
    sandbox: CurrentSandbox,
    report: ReportedConversation,
    _turn: OwnersTurn,
    node_id: ReportingNode = None,
) -> Success:
    """Record that a conversation was created, paused or renamed (ConversationInfo)."""
    if webhook_ingest.is_of_former_container(sandbox, node_id):
        return Success()
    with context.database.transaction() as session:
        webhook_ingest.record_conversation(session, sandbox, report, context.settings.quotas.stored)
    return Success()


@router.post("/events/{conversation_id}", openapi_extra=EVENTS)
def receive_events(
    context: ContextDep,
    sandbox: CurrentSandbox,
    queue: JobQueueDep,
    conversation_id: str,
    reports: ReportedEvents,
    _turn: OwnersTurn,
    node_id: ReportingNode = None,
) -> Success:
    """Store each event once, and update the conversation from them."""
    if webhook_ingest.is_of_former_container(sandbox, node_id):
        return Success()
    hex_id = parse_id(conversation_id)
    reports = _redact(context, sandbox, hex_id, reports)
    refusal = None
    for begin in range(0, max(1, len(reports)), MAX_STORED_AT_ONCE):
        part = reports[begin : begin + MAX_STORED_AT_ONCE]
        refusal = _record(context, sandbox, queue, hex_id, part, refusal)
    if refusal is not None:
        raise refusal
    # Refused events are no use of the sandbox: the agent server repeats them for ever.
    if deadlines.is_activity_stale(sandbox):
        with context.database.transaction() as session:
            deadlines.record_activity(session, sandbox.id)
    return Success()


def _record(
    context: Context,
    sandbox: Sandbox,
    queue: JobQueue,
    conversation_id: str,
    reports: list[EventReport],
    refusal: QuotaExceeded | None,
) -> QuotaExceeded | None:
    limits = context.settings.quotas.stored
    with context.database.transaction() as session:
        recorded = webhook_ingest.record_events(
            session, sandbox, conversation_id, reports, due_at=queue.due_at, limits=limits, refusal=refusal
        )
    metrics.count_webhook_events(len(reports), stored=recorded.refusal is None)
    if recorded.job is not None:
        queue.enqueue(recorded.job)
    return recorded.refusal


def _redact(context: Context, sandbox: Sandbox, conversation_id: str, reports: list[EventReport]) -> list[EventReport]:
    """Redact secrets of the owner and the conversation in error events: providers quote the keys they refuse."""
    if sandbox.owner_id is None or not any(event.is_error for event in reports):
        return reports
    with context.database.reading() as session:
        redact = redact_for(session, context.vault, sandbox.owner_id, conversation_id)
    return [event.redacted(redact) if event.is_error else event for event in reports]
