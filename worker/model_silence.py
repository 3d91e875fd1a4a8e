"""A model that does not answer: it is said of the conversation, so that nobody waits without knowing for what."""

from datetime import datetime

import structlog
from sqlmodel import Session

from shared import changes
from shared.clock import now
from shared.leases import MOST_SECONDS
from shared.models import Conversation
from shared.reports import MODEL_SILENT, explain, waits_since
from shared.store import conversations, events
from worker.parts import Parts

log = structlog.get_logger()

# With what comes before and after it, this is seen within a minute.
SILENT_SECONDS = 40.0


def look_for_silence(parts: Parts, conversation: Conversation) -> float | None:
    """Say of a conversation, whose agent runs, that its model has been silent for long, if that is so.

    Returns:
        In how many seconds to look again; None: the next event asks for that.
    """
    if conversation.execution_status != "running" or conversation.execution_reason == MODEL_SILENT:
        return None
    with parts.database.reading() as session:
        since = _waits_since(session, conversation)
    if since is None:
        return None
    left = SILENT_SECONDS - (now() - since).total_seconds()
    if left > 0:
        return min(left, MOST_SECONDS)
    _say(parts, conversation.id, since)
    return None


def _waits_since(session: Session, conversation: Conversation) -> datetime | None:
    times = (waits_since(events.newest(session, conversation.id)), conversation.execution_status_at)
    return None if times[0] is None else min(now(), max(time for time in times if time is not None))


def _say(parts: Parts, conversation_id: str, since: datetime) -> None:
    with parts.database.transaction() as session:
        row = conversations.find(session, conversation_id, lock=True)
        if row is None or row.execution_status != "running" or _waits_since(session, row) != since:
            return  # it has answered at this moment
        words = f"no answer from the model {row.llm_model or ''} since {since:%H:%M:%S} UTC"
        explain(row, MODEL_SILENT, words.replace("  ", " "))
        changes.note(session, row)
    log.info("model_silent", conversation=conversation_id)
