"""Webhooks of sandboxes: stored without duplicates, merged into their conversations, passed to a worker if needed."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlmodel import Session

from shared.changes import recorder as change_recorder
from shared.clock import after
from shared.conversations import events, webhook_reports
from shared.conversations import queries as conversation_queries
from shared.conversations.webhook_reports import ConversationReport, EventReport, Report
from shared.errors import NotFound
from shared.leasing import leases
from shared.models import Conversation, Sandbox
from shared.queue.jobs import RefreshConversation
from shared.sandboxes import deadlines

# A worker checks after this time whether the model has responded; it is the furthest due time of a row.
SILENCE_CHECK_SECONDS = leases.MAX_SECONDS
SHOWN = (
    "title",
    "execution_status",
    "execution_reason",
    "execution_detail",
    "metrics",
    "tags",
    "llm_model",
    "agent_kind",
    "parent_id",
)


def record_conversation(session: Session, sandbox: Sandbox, reported: ConversationReport) -> None:
    """Merge a sandbox's report on one of its conversations.

    Raises:
        NotFound: the conversation does not belong to that sandbox.
    """
    _record_use(session, sandbox)
    conversation = _find_or_adopt(session, reported.id, sandbox)
    if conversation.deleted_at is None:
        _merge(session, conversation, [reported.report])


def record_events(
    session: Session,
    sandbox: Sandbox,
    conversation_id: str,
    reported: Sequence[EventReport],
    *,
    due_at: datetime,
) -> RefreshConversation | None:
    """Store a sandbox's events and merge their reports into the conversation.

    Returns:
        The job to be published after the commit, if a worker must refresh the conversation by `due_at`.

    Raises:
        NotFound: the conversation does not belong to that sandbox.
    """
    _record_use(session, sandbox)
    conversation = _find_or_adopt(session, conversation_id, sandbox)
    if conversation.deleted_at is not None:
        return None  # the agent server's final report on it, which an error would make it repeat
    events.store(session, [event.as_row(conversation_id) for event in reported])
    batch = [event.report for event in reported if event.report is not None]
    _merge(session, conversation, batch, progressed=any(event.kind != events.STATE for event in reported))
    return _request_refresh(conversation, batch, sandbox, due_at)


def _record_use(session: Session, sandbox: Sandbox) -> None:
    # Before its conversation is locked: transactions that lock in opposite orders would deadlock.
    if deadlines.is_activity_stale(sandbox):
        deadlines.record_activity(session, sandbox.id)


def _find_or_adopt(session: Session, conversation_id: str, sandbox: Sandbox) -> Conversation:
    conversation = conversation_queries.find_or_adopt(session, conversation_id, sandbox)
    if conversation is None:
        raise NotFound("conversation", conversation_id)
    return conversation


def _merge(session: Session, conversation: Conversation, batch: Sequence[Report], *, progressed: bool = False) -> None:
    """Merge reports. `progressed`: the agent has acted or received a message."""
    before = _shown(conversation)
    if progressed and conversation.execution_reason == webhook_reports.MODEL_SILENT:
        webhook_reports.explain(conversation, None, None)
    for report in batch:
        webhook_reports.merge(conversation, report)
    if _shown(conversation) != before:
        change_recorder.record_change(session, conversation)


def _shown(conversation: Conversation) -> list[Any]:
    """The values whose change is recorded: a report may repeat the known state."""
    return [getattr(conversation, name) for name in SHOWN]


def _request_refresh(
    conversation: Conversation, batch: list[Report], sandbox: Sandbox, due_at: datetime
) -> RefreshConversation | None:
    if not webhook_reports.needs_worker(conversation, batch):
        if conversation.execution_status == "running" and conversation.due_at is None:
            conversation.due_at = after(SILENCE_CHECK_SECONDS)
        return None
    conversation.due_at = due_at
    return RefreshConversation(conversation.id, sandbox.node_id)
