"""Webhooks of sandboxes: stored without duplicates, merged into their conversations, passed to a worker if needed."""

from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, NamedTuple

from sqlmodel import Session

from shared.changes import recorder as change_recorder
from shared.clock import after
from shared.conversations import events, webhook_reports
from shared.conversations import queries as conversation_queries
from shared.conversations import quotas as conversation_quotas
from shared.conversations.webhook_reports import EVENTS_REFUSED, NODE_LOST, ConversationReport, EventReport, Report
from shared.errors import NotFound, QuotaExceeded
from shared.leasing.limits import MAX_SECONDS
from shared.models import Conversation, Event, Sandbox
from shared.queue.jobs import RefreshConversation
from shared.sandboxes import deadlines
from shared.settings import NO_QUOTAS, StoredQuotas

# The node of the container that sends a webhook, in a header that its worker has configured. Containers from before the
# header was introduced send none.
NODE_HEADER = "X-Agent-Workspace-Node"
# A worker checks after this time whether the model has responded, or, if the events are refused, what the agent's
# status is. It is the maximum delay of a row's `due_at`.
CHECK_SECONDS = MAX_SECONDS
SHOWN = (
    "title",
    "execution_status",
    "execution_reason",
    "execution_detail",
    "metrics",
    "tags",
    "trigger",
    "llm_model",
    "agent_kind",
    "parent_id",
)


class Recorded(NamedTuple):
    """What was done with reported events."""

    # To be published after the commit, if a worker must refresh the conversation.
    job: RefreshConversation | None = None
    # Why the events were not stored. The agent server must receive this as an error, so that it sends them again.
    refusal: QuotaExceeded | None = None


def is_of_former_container(sandbox: Sandbox, node_id: str | None) -> bool:
    """Whether a webhook comes from a container that its sandbox has left on a lost node, where it may still run.

    That container's conversations do not exist on the sandbox's new agent server, so no later report would ever
    replace the status that it reports for them.

    Args:
        node_id: the value of `NODE_HEADER`.
    """
    return node_id is not None and node_id != sandbox.node_id


def record_conversation(
    session: Session, sandbox: Sandbox, reported: ConversationReport, limits: StoredQuotas = NO_QUOTAS.stored
) -> None:
    """Merge a sandbox's report on one of its conversations.

    Raises:
        NotFound: the conversation does not belong to that sandbox.
        QuotaExceeded: the conversation is unknown, and its owner or sandbox has the maximum number of them.
    """
    if deadlines.is_activity_stale(sandbox):  # before the conversation is locked: otherwise transactions could deadlock
        deadlines.record_activity(session, sandbox.id)
    conversation = _find_or_adopt(session, reported.id, sandbox, limits)
    if conversation.deleted_at is None:
        _merge(session, conversation, [reported.report])


def record_events(
    session: Session,
    sandbox: Sandbox,
    conversation_id: str,
    reported: Sequence[EventReport],
    *,
    due_at: datetime,
    limits: StoredQuotas = NO_QUOTAS.stored,
    refusal: QuotaExceeded | None = None,
) -> Recorded:
    """Store a sandbox's events and merge their reports into the conversation.

    The reports are merged even if a quota rejects the events: a sandbox must be able to end its work. The conversation
    then says which events are missing.

    Args:
        refusal: why earlier events of the same webhook were not stored; these are not stored either.

    Returns:
        The job that refreshes the conversation by `due_at`, if that is needed, and why the events were refused.

    Raises:
        NotFound: the conversation does not belong to that sandbox.
        QuotaExceeded: the conversation is unknown, and its owner or sandbox has the maximum number of them.
    """
    conversation = _find_or_adopt(session, conversation_id, sandbox, limits)
    if conversation.deleted_at is not None:
        return Recorded()  # the agent server's final report on it, which an error would make it repeat
    refusal = refusal or _store(session, conversation, reported, limits)
    batch = [event.report for event in reported if event.report is not None]
    progressed = any(event.kind != events.STATE for event in reported)
    _merge(session, conversation, batch, progressed=progressed, refusal=refusal, stored=bool(reported))
    return Recorded(_request_refresh(conversation, batch, sandbox, due_at, refusal), refusal)


def lacks_reports(conversation: Conversation) -> bool:
    """Whether later reports may be missing: an agent server repeats refused events, and sends none of the later ones.

    The reason of an error may be shown instead of `EVENTS_REFUSED`.
    """
    return conversation.execution_reason not in (None, webhook_reports.MODEL_SILENT)


def record_state(session: Session, conversation: Conversation, report: Report) -> None:
    """Merge what a worker has read from the agent server of a locked conversation that lacks reports."""
    before, updated_at = _shown(conversation), conversation.updated_at
    refusal = conversation.execution_detail if conversation.execution_reason == EVENTS_REFUSED else None
    webhook_reports.merge(conversation, report)
    if refusal is not None:
        webhook_reports.explain_refusal(conversation, refusal)
    if _shown(conversation) != before:
        change_recorder.record_change(session, conversation)
    else:
        conversation.updated_at = updated_at  # only the time of the status is newer


def _store(
    session: Session, conversation: Conversation, reported: Sequence[EventReport], limits: StoredQuotas
) -> QuotaExceeded | None:
    """Store and count all of the events, or none of them. Return the reason if a quota rejects them."""
    rows = [event.as_row(conversation.id) for event in reported]
    try:
        with change_recorder.savepoint(session) if limits.events or limits.event_bytes else nullcontext():
            conversation_quotas.add_events(session, conversation.owner_id, events.store(session, rows), limits)
    except QuotaExceeded as refusal:
        return refusal
    return None


def _find_or_adopt(session: Session, conversation_id: str, sandbox: Sandbox, limits: StoredQuotas) -> Conversation:
    conversation = conversation_queries.find_or_adopt(session, conversation_id, sandbox, limits)
    if conversation is None:
        raise NotFound("conversation", conversation_id)
    return conversation


def _merge(
    session: Session,
    conversation: Conversation,
    batch: Sequence[Report],
    *,
    progressed: bool = False,
    refusal: QuotaExceeded | None = None,
    stored: bool = False,
) -> None:
    """Merge reports.

    Args:
        progressed: the agent has acted or received a message.
        refusal: why its events are not stored.
        stored: events are stored, unless refused. Then none is missing: an agent server sends them in order.
    """
    before = _shown(conversation)
    if progressed and conversation.execution_reason == webhook_reports.MODEL_SILENT:
        webhook_reports.explain(conversation, None, None)
    for report in batch:
        webhook_reports.merge(conversation, report)
    if refusal is None:  # else the events since a late report are not known
        _explain_late(session, conversation, batch)
    if refusal or stored:
        webhook_reports.explain_refusal(conversation, _show(refusal))
    if _shown(conversation) != before:
        change_recorder.record_change(session, conversation)


def _explain_late(session: Session, conversation: Conversation, batch: Sequence[Report]) -> None:
    """Set the reason of an error from a report that a later one of the same status has overtaken.

    It stays unset if the conversation has had another status or another error since that report.
    """
    known_at = conversation.execution_status_at
    late = [report for report in batch if report.failure and known_at and report.at < known_at]
    if not late or conversation.execution_status != "error" or conversation.execution_reason == NODE_LOST:
        return
    last = max(late, key=lambda report: report.at)
    if last.failure and not any(map(_is_other_outcome, events.status_reports(session, conversation.id, last.at))):
        webhook_reports.explain(conversation, *last.failure)


def _is_other_outcome(event: Event) -> bool:
    report = webhook_reports.read_event(event.body).report
    return report is not None and (report.failure is not None or report.execution_status not in (None, "error"))


def _show(refusal: QuotaExceeded | None) -> str | None:
    return None if refusal is None else f"its newest events are not stored: {refusal}"


def _shown(conversation: Conversation) -> list[Any]:
    """The values whose change is recorded: a report may repeat the known state."""
    return [getattr(conversation, name) for name in SHOWN]


def _request_refresh(
    conversation: Conversation,
    batch: list[Report],
    sandbox: Sandbox,
    due_at: datetime,
    refusal: QuotaExceeded | None,
) -> RefreshConversation | None:
    if not webhook_reports.needs_worker(conversation, batch):
        if (refusal or conversation.execution_status == "running") and conversation.due_at is None:
            conversation.due_at = after(CHECK_SECONDS)
        return None
    conversation.due_at = due_at
    return RefreshConversation(conversation.id, sandbox.node_id)
