"""What sandboxes report: stored once, merged into their conversations, with a worker asked where one is needed."""

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

# A worker looks by then whether the model has answered; as far ahead as a row may ask for it.
LOOK_SECONDS = leases.MAX_SECONDS
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


def record_conversation(session: Session, sandbox: Sandbox, told: ConversationReport) -> None:
    """Take over what a sandbox says of one of its conversations.

    Raises:
        NotFound: the conversation is not that sandbox's.
    """
    _record_use(session, sandbox)
    conversation = _welcome(session, told.id, sandbox)
    if conversation.deleted_at is None:
        _take_over(session, conversation, [told.report])


def record_events(
    session: Session,
    sandbox: Sandbox,
    conversation_id: str,
    told: Sequence[EventReport],
    *,
    due_at: datetime,
) -> RefreshConversation | None:
    """Store a sandbox's events and take over what they say of their conversation.

    Returns:
        The job to be published after the commit, if a worker must look at the conversation by `due_at`.

    Raises:
        NotFound: the conversation is not that sandbox's.
    """
    _record_use(session, sandbox)
    conversation = _welcome(session, conversation_id, sandbox)
    if conversation.deleted_at is not None:
        return None  # the last that its agent server says of it: an error would make it say so again
    events.store(session, [event.as_row(conversation_id) for event in told])
    batch = [event.report for event in told if event.report is not None]
    _take_over(session, conversation, batch, goes_on=any(event.kind != events.STATE for event in told))
    return _ask_worker(conversation, batch, sandbox, due_at)


def _record_use(session: Session, sandbox: Sandbox) -> None:
    # Before its conversation is locked: two that lock in opposite orders would wait for each other.
    if deadlines.is_use_stale(sandbox):
        deadlines.record_use(session, sandbox.id)


def _welcome(session: Session, conversation_id: str, sandbox: Sandbox) -> Conversation:
    conversation = conversation_queries.find_or_adopt(session, conversation_id, sandbox)
    if conversation is None:
        raise NotFound("conversation", conversation_id)
    return conversation


def _take_over(session: Session, conversation: Conversation, batch: Sequence[Report], *, goes_on: bool = False) -> None:
    """`goes_on`: the agent has done something, or heard something."""
    before = _shown(conversation)
    if goes_on and conversation.execution_reason == webhook_reports.MODEL_SILENT:
        webhook_reports.explain(conversation, None, None)
    for report in batch:
        webhook_reports.merge(conversation, report)
    if _shown(conversation) != before:
        change_recorder.record_change(session, conversation)


def _shown(conversation: Conversation) -> list[Any]:
    """What is worth telling: a report may say no more than that all is as it was."""
    return [getattr(conversation, name) for name in SHOWN]


def _ask_worker(
    conversation: Conversation, batch: list[Report], sandbox: Sandbox, due_at: datetime
) -> RefreshConversation | None:
    if not webhook_reports.needs_worker(conversation, batch):
        if conversation.execution_status == "running" and conversation.due_at is None:
            conversation.due_at = after(LOOK_SECONDS)
        return None
    conversation.due_at = due_at
    return RefreshConversation(conversation.id, sandbox.node_id)
