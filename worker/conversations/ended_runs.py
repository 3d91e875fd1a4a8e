"""Agents that ran when the container of their sandbox ended: the server that is booted next knows what became of them.

It reports a run that it finds interrupted. But the report of a run that had ended before may be lost with its sender,
and a server whose files were removed knows no run. Such a conversation would be shown as running for good, and keep its
sandbox from being paused.
"""

from datetime import datetime, timedelta

import structlog

from shared.agent_server.errors import AgentServerRefused
from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.conversations import events, webhook_reports
from shared.conversations import queries as conversation_queries
from shared.conversations.report_values import read_status
from shared.conversations.webhook_reports import CONVERSATION_LOST, Report
from shared.errors import LeaseLost
from shared.models import Conversation, Sandbox
from shared.sql import clock_steps
from worker.agent_server.client import AgentServer
from worker.context import WorkerContext
from worker.conversations.agent_status import fetch_status, suppress_failure

log = structlog.get_logger()

# From this time after its sandbox was booted or resumed, a failing server is rarely asked for the status.
MAX_STATUS_WAIT = timedelta(minutes=10)
UNKNOWN = object()
LOST_DETAIL = "the sandbox's agent server does not have this conversation any more: its files were removed"


def check_run(
    context: WorkerContext, conversation: Conversation, sandbox: Sandbox, server: AgentServer
) -> Conversation | None:
    """Write the end of an agent's run if nothing was reported of the agent since its sandbox was booted or resumed.

    Args:
        conversation: the row as claimed.
        sandbox: its sandbox, which runs.
        server: the sandbox's agent server.

    Returns:
        The row, read again if the run has ended; None if the server still fails after `MAX_STATUS_WAIT`.

    Raises:
        AgentServerUnreachable: the agent server does not respond, within `MAX_STATUS_WAIT`.
        WrongServer: another server responds at its URL, within `MAX_STATUS_WAIT`.
        LeaseLost: another worker owns the conversation now.
    """
    if conversation.execution_status != "running" or _is_reported_since(context, conversation, sandbox):
        return conversation
    found: object = UNKNOWN
    may_wait = clock_steps.is_recent(sandbox.status_changed_at, MAX_STATUS_WAIT)
    try:
        with suppress_failure(conversation, may_wait=may_wait):
            found = fetch_status(conversation, server)
    except AgentServerRefused as error:  # it would refuse a retry
        log.warning("run_not_checked", conversation=conversation.id, status=error.status)
        return conversation
    if found is UNKNOWN:
        return None
    return conversation if found == "running" else _end(context, conversation, found)


def _is_reported_since(context: WorkerContext, conversation: Conversation, sandbox: Sandbox) -> bool:
    since, reported_at = sandbox.status_changed_at, conversation.execution_status_at
    if reported_at is None or reported_at >= since:
        return True
    with context.database.reading() as session:
        newest = events.newest(session, conversation.id)
    return any(event.timestamp >= since for event in newest)


def _end(context: WorkerContext, conversation: Conversation, found: object) -> Conversation:
    with context.database.transaction() as session:
        row = conversation_queries.find(session, conversation.id, lock=True)
        if row is None or row.fence != conversation.fence:
            raise LeaseLost(f"conversation {conversation.id}: the lease with fence {conversation.fence} is lost")
        if _status_of(row) != _status_of(conversation):
            return row  # another status was reported meanwhile
        if found is None:
            webhook_reports.end_lost_run(row, CONVERSATION_LOST, LOST_DETAIL)
        else:
            webhook_reports.merge(row, Report(now(), execution_status=read_status(found)))
        change_recorder.record_change(session, row)
    log.info("run_ended", conversation=row.id, status=row.execution_status)
    return row


def _status_of(conversation: Conversation) -> tuple[str | None, datetime | None]:
    return conversation.execution_status, conversation.execution_status_at
