"""Messages that wait for their conversation: kept in order, each until the agent server has it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import delete, func
from sqlmodel import Session, col, select

from shared.clock import now
from shared.conversations import queries as conversation_queries
from shared.conversations import start_tasks
from shared.errors import Conflict, Gone, NotFound, QuotaExceeded
from shared.leasing import leases
from shared.models import Conversation, PendingMessage, Sandbox, StartTask
from shared.queue.jobs import DeliverMessages
from shared.states import Desired, Stage

# As many as V1 lets wait (wire contract 1.4).
MOST = 10
RETRY_SECONDS = 5
ADVICE = "they are delivered as soon as the conversation runs"


class Queued(NamedTuple):
    """A message that was taken, how many are in front of it, itself included, and what hurries it."""

    id: str
    position: int
    job: DeliverMessages | None


def add(
    session: Session, conversation_id: str, owner_id: str, content: list[dict[str, Any]], *, due_at: datetime
) -> Queued:
    """Keep a message for the owner's conversation, or for the one that is being started under that id.

    Raises:
        NotFound: there is none, or it is somebody else's.
        Conflict: its start has failed, or was cancelled.
        Gone: its sandbox is deleted.
        QuotaExceeded: too many wait already.
    """
    job = _lock(session, conversation_id, owner_id, due_at)
    waiting = session.exec(select(func.count()).select_from(PendingMessage).where(*_deliverable(conversation_id))).one()
    if waiting >= MOST:
        raise QuotaExceeded("messages that wait", MOST, ADVICE, RETRY_SECONDS)
    message = PendingMessage(conversation_id=conversation_id, content=content)
    session.add(message)
    return Queued(message.id, waiting + 1, job)


def conversation_of_start(session: Session, task_id: str, owner_id: str) -> str:
    """The id of the conversation that the owner's task starts.

    Raises:
        NotFound: there is no such task, or it is somebody else's.
    """
    task = session.get(StartTask, task_id)
    if task is None or task.owner_id != owner_id:
        raise NotFound("start task", task_id)
    return task.conversation_id


def list_pending(session: Session, conversation_id: str, owner_id: str) -> Sequence[PendingMessage]:
    """What waits for the owner's conversation, in order, and what its agent server has refused.

    Raises:
        NotFound: there is none, none is being started, or it is somebody else's.
    """
    of_conversation = select(Conversation.id).where(
        Conversation.id == conversation_id, Conversation.owner_id == owner_id, col(Conversation.listed)
    )
    of_start = select(StartTask.id).where(StartTask.conversation_id == conversation_id, StartTask.owner_id == owner_id)
    if not any(session.exec(known).first() for known in (of_conversation, of_start)):
        raise NotFound("conversation", conversation_id)
    found = select(PendingMessage).where(PendingMessage.conversation_id == conversation_id)
    return session.exec(found.order_by(col(PendingMessage.seq))).all()


def hand_over(session: Session, conversation: Conversation) -> bool:
    """Have what was said while it was being started delivered, now that it is READY; whether there is anything."""
    if find_next(session, conversation.id) is None:
        return False
    conversation.awaits_sandbox, conversation.due_at = True, now()
    return True


def discard(session: Session, conversation_id: str) -> None:
    """Nobody is there any more who could be told."""
    session.execute(delete(PendingMessage).where(col(PendingMessage.conversation_id) == conversation_id))


# --- for who delivers them, under the conversation's lease ------------------------------------------------------------


def find_next(session: Session, conversation_id: str) -> PendingMessage | None:
    """The one that is to be delivered now."""
    found = select(PendingMessage).where(*_deliverable(conversation_id))
    return session.exec(found.order_by(col(PendingMessage.seq)).limit(1)).first()


def mark_attempt(session: Session, conversation: Conversation, message: PendingMessage, newest: str | None) -> None:
    """From now on the agent server may have it.

    Raises:
        LeaseLost: another worker delivers by now; nothing was written.
    """
    _show_lease(session, conversation)
    row = session.get_one(PendingMessage, message.seq)
    row.attempted_at, row.newest_before = now(), newest


def mark_refused(session: Session, conversation: Conversation, message: PendingMessage, refusal: str) -> None:
    """The agent server does not take it, and would not the next time.

    Raises:
        LeaseLost: as above.
    """
    _show_lease(session, conversation)
    session.get_one(PendingMessage, message.seq).refusal = refusal


def remove(session: Session, conversation: Conversation, message: PendingMessage) -> None:
    """The agent server has it.

    Raises:
        LeaseLost: as above.
    """
    _show_lease(session, conversation)
    session.execute(delete(PendingMessage).where(col(PendingMessage.seq) == message.seq))


def finish_delivery(session: Session, conversation: Conversation) -> None:
    """Nothing more is to be done in the sandbox, unless somebody has said something at this moment.

    Raises:
        LeaseLost: as above.
    """
    conversation_queries.find(session, conversation.id, lock=True)  # who adds a message holds this, too
    waits = find_next(session, conversation.id) is not None
    leases.write(session, Conversation, conversation.id, conversation.fence, awaits_sandbox=waits)


def _lock(session: Session, conversation_id: str, owner_id: str, due_at: datetime) -> DeliverMessages | None:
    """Keep everybody else away from the conversation's messages; the job, if it can be told already."""
    conversation = conversation_queries.find(session, conversation_id)
    if conversation is None or not conversation.listed:
        task = start_tasks.find_for_conversation(session, conversation_id, lock=True)
        if task is None or task.owner_id != owner_id:
            raise NotFound("conversation", conversation_id)
        if task.stage == Stage.ERROR or task.cancelled_at is not None:
            raise Conflict("the conversation's start has failed: there is nobody to be told")
        if task.stage != Stage.READY:
            return None  # who makes it READY looks for messages, and has to wait for us
    conversation = conversation_queries.find(session, conversation_id, lock=True)
    if conversation is None or conversation.owner_id != owner_id or not conversation.listed:
        raise NotFound("conversation", conversation_id)
    sandbox = session.get_one(Sandbox, conversation.sandbox_id)
    if sandbox.desired == Desired.DELETED:
        raise Gone(f"the sandbox of conversation {conversation_id} is deleted")
    conversation.awaits_sandbox, conversation.due_at = True, due_at
    return DeliverMessages(conversation_id, sandbox.node_id)


def _deliverable(conversation_id: str) -> tuple[Any, Any]:
    return (PendingMessage.conversation_id == conversation_id, col(PendingMessage.refusal).is_(None))


def _show_lease(session: Session, conversation: Conversation) -> None:
    leases.write(session, Conversation, conversation.id, conversation.fence, awaits_sandbox=True)
