"""Conversations whose events a quota refuses: their agent servers send no report that comes after refused events.

An agent server sends the oldest events again until they are stored, and none of the later ones. The status and the cost
of its agent are read from it instead: otherwise no budget would be enforced, and no sandbox paused. Each refused
webhook makes the conversation due again.
"""

from dataclasses import replace
from typing import Any

import structlog

from shared.agent_server.errors import AgentServerError, ResponseTooLarge
from shared.agent_server.responses import read_beginning
from shared.clock import now
from shared.conversations import webhook_ingest
from shared.conversations.report_values import read_time
from shared.conversations.webhook_reports import Report, read_state
from shared.leasing import leases
from shared.models import Conversation
from worker.agent_server.client import AgentServer
from worker.context import WorkerContext

log = structlog.get_logger()


def fetch_state(context: WorkerContext, conversation: Conversation, server: AgentServer) -> Conversation:
    """Write the state of the agent as its server has it, if reports of it may be missing.

    Returns:
        The row, read again if the server has responded.

    Raises:
        LeaseLost: another worker owns the conversation now.
    """
    if not webhook_ingest.lacks_reports(conversation):
        return conversation
    try:
        known = _fetch(conversation, server)
    except AgentServerError as error:  # the next refused webhook causes a retry
        log.warning("state_not_fetched", conversation=conversation.id, error=type(error).__name__)
        return conversation
    return conversation if known is None else _write(context, conversation, _read(conversation, known))


def _fetch(conversation: Conversation, server: AgentServer) -> dict[str, Any] | None:
    """Return the server's document; of one that is too large the beginning, with the status and the first costs."""
    try:
        return server.get_conversation(conversation.id)
    except ResponseTooLarge as error:
        return read_beginning(error.beginning)


def _read(conversation: Conversation, known: dict[str, Any]) -> Report:
    """Read the report of a document, with a time by the server's clock: reports of all later changes must count.

    `updated_at` is the time of the newest event that is not a change of the state. The tags are left out: they are
    reported apart from events, and a repeated report would set them back each time.
    """
    times = (read_time(known.get("updated_at")), conversation.execution_status_at)
    report = read_state(known, max((time for time in times if time is not None), default=now()))
    return replace(report, tags={})


def _write(context: WorkerContext, conversation: Conversation, report: Report) -> Conversation:
    with context.database.transaction() as session:
        leases.lock_leased(session, Conversation, conversation.id, conversation.fence)
        row = session.get_one(Conversation, conversation.id)
        if row.deleted_at is None:
            webhook_ingest.record_state(session, row, report)
    return row
