"""Detection of a model that does not respond. The conversation shows this, so that its user knows why it waits."""

from datetime import datetime

import structlog

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.conversations import events
from shared.conversations import queries as conversation_queries
from shared.conversations.webhook_reports import EVENTS_REFUSED, MODEL_SILENT, explain, waits_since
from shared.db.database import Session
from shared.leasing.limits import MAX_SECONDS
from shared.models import Conversation
from worker.context import WorkerContext

log = structlog.get_logger()

# Time without a response after which a model counts as silent. With all other delays, the user sees it within a minute.
SILENT_SECONDS = 40.0


def check_silence(context: WorkerContext, conversation: Conversation) -> float | None:
    """Record that the model of a running agent is silent, if the model's timeout is over.

    Returns:
        Seconds until the next check; None: the next event enqueues the next check.
    """
    if not _may_be_silent(conversation):
        return None
    with context.database.reading() as session:
        since = _waits_since(session, conversation)
    if since is None:
        return None
    left = SILENT_SECONDS - (now() - since).total_seconds()
    if left > 0:
        return min(left, MAX_SECONDS)
    _record_silence(context, conversation.id, since)
    return None


def _may_be_silent(conversation: Conversation) -> bool:
    # Without the refused events, it is not known what the agent waits for.
    known = (MODEL_SILENT, EVENTS_REFUSED)
    return conversation.execution_status == "running" and conversation.execution_reason not in known


def _waits_since(session: Session, conversation: Conversation) -> datetime | None:
    times = (waits_since(events.newest(session, conversation.id)), conversation.execution_status_at)
    return None if times[0] is None else min(now(), max(time for time in times if time is not None))


def _record_silence(context: WorkerContext, conversation_id: str, since: datetime) -> None:
    with context.database.transaction() as session:
        row = conversation_queries.find(session, conversation_id, lock=True)
        if row is None or not _may_be_silent(row) or _waits_since(session, row) != since:
            return  # the model has answered since
        detail = f"no answer from the model {row.llm_model or ''} since {since:%H:%M:%S} UTC"
        explain(row, MODEL_SILENT, detail.replace("  ", " "))
        change_recorder.record_change(session, row)
    log.info("model_silent", conversation=conversation_id)
