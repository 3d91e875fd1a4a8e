"""Quotas of what is stored for a user: conversations, events and their bytes.

The usage is one row for each user, so a check costs the same however much is stored.
"""

from sqlalchemy import func
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.changes.recorder import Usage
from shared.errors import QuotaExceeded
from shared.models import Conversation, StartTask
from shared.models.conversations import UNFINISHED
from shared.settings import StoredQuotas

CONVERSATIONS = "conversations (AW_QUOTA_CONVERSATIONS)"
EVENTS = "events (AW_QUOTA_EVENTS)"
EVENT_BYTES = "bytes of events (AW_QUOTA_EVENT_BYTES)"
OF_SANDBOX = "conversations that a sandbox may report"
ADVICE = "delete conversations, then retry"
# The maximum number of conversations of one sandbox, deleted ones included: its agent server, or a client that talks to
# it directly, may invent any number of them.
MAX_OF_SANDBOX = 1000
# Sent as Retry-After. Agent servers keep rejected events, and send them again; a user has to delete something first.
RETRY_SECONDS = 60


def admit_start(session: Session, owner_id: str, max_conversations: int) -> None:
    """Check that the owner may start one more conversation. The caller has locked the user.

    Raises:
        QuotaExceeded: the quota is used up, starts that are under way included.
    """
    known = select(Conversation.id).where(Conversation.id == StartTask.conversation_id)
    starting = select(func.count()).select_from(StartTask)
    begun = session.exec(starting.where(StartTask.owner_id == owner_id, *UNFINISHED, ~known.exists())).one()
    if change_recorder.read_usage(session, owner_id).conversations + begun >= max_conversations:
        raise QuotaExceeded(CONVERSATIONS, max_conversations, ADVICE, RETRY_SECONDS)


def check_sandbox(session: Session, sandbox_id: str) -> None:
    """Check that a sandbox may report one more conversation that was not started here.

    Raises:
        QuotaExceeded: it has the maximum already.
    """
    last = select(Conversation.id).where(Conversation.sandbox_id == sandbox_id).offset(MAX_OF_SANDBOX - 1).limit(1)
    if session.exec(last.order_by(col(Conversation.created_at), col(Conversation.id))).first() is not None:
        raise QuotaExceeded(OF_SANDBOX, MAX_OF_SANDBOX, "use another sandbox", RETRY_SECONDS)


def add_conversation(session: Session, owner_id: str, limits: StoredQuotas) -> None:
    """Count a conversation that a webhook adds.

    Raises:
        QuotaExceeded: it is one too many. The caller rolls back.
    """
    usage = change_recorder.add_usage(session, owner_id, Usage(conversations=1))
    if limits.conversations and usage.conversations > limits.conversations:
        raise QuotaExceeded(CONVERSATIONS, limits.conversations, ADVICE, RETRY_SECONDS)


def add_events(session: Session, owner_id: str, added: Usage, limits: StoredQuotas) -> None:
    """Count stored events.

    Raises:
        QuotaExceeded: there are too many, or too many bytes. The caller rolls back.
    """
    if not added.events:
        return
    usage = change_recorder.add_usage(session, owner_id, added)
    if limits.events and usage.events > limits.events:
        raise QuotaExceeded(EVENTS, limits.events, ADVICE, RETRY_SECONDS)
    if limits.event_bytes and usage.event_bytes > limits.event_bytes:
        raise QuotaExceeded(EVENT_BYTES, limits.event_bytes, ADVICE, RETRY_SECONDS)
