"""Pending messages of conversations: stored in order, each until the agent server has received it."""

from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from typing import Any, NamedTuple

from sqlalchemy import delete, func
from sqlmodel import Session, col, select

from shared.clock import now
from shared.conversations import events, start_tasks
from shared.conversations import queries as conversation_queries
from shared.errors import Conflict, Gone, NotFound, QuotaExceeded
from shared.leasing import leases
from shared.models import Conversation, PendingMessage, Sandbox, StartTask
from shared.queue.jobs import DeliverMessages
from shared.sql.pagination import MAX_PAGE_BYTES, measure
from shared.states import PAUSING, Desired, Stage, Status

# V1's limit of pending messages (wire contract 1.4).
MAX_PENDING = 10
# The number of rejected messages that are kept for a conversation: the newest ones.
MAX_REFUSED = 10
# The maximum number of older rejected messages that `mark_refused` deletes at a time. More exist only if a version
# without `MAX_REFUSED` stored them.
MAX_DELETED = 100
RETRY_SECONDS = 5
# The columns that say whether a sandbox is paused or about to interrupt its agents.
PAUSE: tuple[Any, ...] = (Sandbox.desired, Sandbox.status, Sandbox.generation, Sandbox.observed_generation)
ADVICE = "they are delivered as soon as the conversation runs"


class Queued(NamedTuple):
    """An accepted message, its position in the queue (the first is 1), and the job that delivers it."""

    id: str
    position: int
    job: DeliverMessages | None


def add(
    session: Session, conversation_id: str, owner_id: str, content: list[dict[str, Any]], *, due_at: datetime
) -> Queued:
    """Store a message for the owner's conversation, or for the one that is being started under that id.

    Raises:
        NotFound: the conversation does not exist or belongs to another user.
        Conflict: the start of the conversation has failed or was cancelled.
        Gone: the sandbox of the conversation is deleted.
        QuotaExceeded: the conversation has the maximum number of pending messages already.
    """
    job = _lock(session, conversation_id, owner_id, due_at)
    waiting = count_pending(session, conversation_id)
    message = PendingMessage(conversation_id=conversation_id, content=content)
    session.add(message)
    return Queued(message.id, waiting + 1, job)


def count_pending(session: Session, conversation_id: str) -> int:
    """The number of pending messages, to which one may be added.

    Raises:
        QuotaExceeded: the conversation has the maximum number of pending messages already.
    """
    waiting = session.exec(select(func.count()).select_from(PendingMessage).where(*_deliverable(conversation_id))).one()
    if waiting >= MAX_PENDING:
        raise QuotaExceeded("pending messages", MAX_PENDING, ADVICE, RETRY_SECONDS)
    return waiting


def add_sent(
    session: Session,
    conversation_id: str,
    owner_id: str,
    content: list[dict[str, Any]],
    *,
    sent_at: datetime | None,
    due_at: datetime,
) -> DeliverMessages | None:
    """Store a message that was sent to the agent server, for a worker to check that the agent gets it and runs.

    The maximum number does not apply: the agent server may have it in any case. The caller has checked it with
    `count_pending` before it sent the message.

    Args:
        sent_at: when it was sent, if the agent server has not confirmed that it has the message. The user's message
            before that time is recorded: it may have the same words, and must not be mistaken for this one.

    Returns:
        The job that delivers it.

    Raises:
        NotFound: the conversation was deleted.
        Gone: the sandbox of the conversation is deleted.
    """
    newest = events.find_user_message(session, conversation_id, sent_at) if sent_at else None
    job = _lock(session, conversation_id, owner_id, due_at)
    row = PendingMessage(conversation_id=conversation_id, content=content, attempted_at=now(), newest_before=newest)
    session.add(row)
    return job


def conversation_of_start(session: Session, task_id: str, owner_id: str) -> str:
    """The id of the conversation that the owner's task starts.

    Raises:
        NotFound: the task does not exist or belongs to another user.
    """
    task = session.get(StartTask, task_id)
    if task is None or task.owner_id != owner_id:
        raise NotFound("start task", task_id)
    return task.conversation_id


def list_pending(session: Session, conversation_id: str, owner_id: str) -> Sequence[PendingMessage]:
    """The pending messages of the owner's conversation, in order, with those that its agent server rejected.

    The oldest are left out if all together exceed `MAX_PAGE_BYTES`.

    Raises:
        NotFound: no conversation exists or is being started under that id, or it belongs to another user.
    """
    of_conversation = select(Conversation.id).where(
        Conversation.id == conversation_id, Conversation.owner_id == owner_id, col(Conversation.listed)
    )
    of_start = select(StartTask.id).where(StartTask.conversation_id == conversation_id, StartTask.owner_id == owner_id)
    if not any(session.exec(known).first() for known in (of_conversation, of_start)):
        raise NotFound("conversation", conversation_id)
    newest = _newest_first(conversation_id, PendingMessage.seq, measure(session, col(PendingMessage.content)))
    sizes = session.exec(newest.limit(MAX_PENDING + MAX_REFUSED)).all()
    totals = accumulate(size for _, size in sizes)
    fitting = [seq for (seq, _), total in zip(sizes, totals, strict=True) if total <= MAX_PAGE_BYTES]
    shown = fitting or [seq for seq, _ in sizes[:1]]
    found = select(PendingMessage).where(col(PendingMessage.seq).in_(shown))
    return session.exec(found.order_by(col(PendingMessage.seq))).all()


def schedule_delivery(session: Session, conversation: Conversation) -> bool:
    """Schedule the delivery of the messages that arrived during the start of a conversation, which is READY now.

    Returns:
        Whether there is a message to deliver.
    """
    if find_next(session, conversation.id) is None:
        return False
    conversation.awaits_sandbox, conversation.due_at = True, now()
    return True


def delete_all(session: Session, conversation_id: str) -> None:
    """Delete the pending messages of a conversation that was deleted or has failed to start."""
    session.execute(delete(PendingMessage).where(col(PendingMessage.conversation_id) == conversation_id))


# --- for the worker that delivers messages, under the conversation's lease --------------------------------------------


def find_next(session: Session, conversation_id: str) -> PendingMessage | None:
    found = select(PendingMessage).where(*_deliverable(conversation_id))
    return session.exec(found.order_by(col(PendingMessage.seq)).limit(1)).first()


def mark_attempt(session: Session, conversation: Conversation, message: PendingMessage, newest: str | None) -> None:
    """Record a delivery attempt: from now on the agent server may have the message.

    Raises:
        LeaseLost: another worker has the lease now; nothing was written.
    """
    _require_lease(session, conversation)
    row = session.get_one(PendingMessage, message.seq)
    row.attempted_at, row.newest_before = now(), newest


def mark_refused(session: Session, conversation: Conversation, message: PendingMessage, reason: str) -> None:
    """Record that the agent server rejected the message, and would reject it at the next attempt too.

    Older rejected messages beyond `MAX_REFUSED` are deleted.

    Raises:
        LeaseLost: see `mark_attempt`.
    """
    _require_lease(session, conversation)
    session.get_one(PendingMessage, message.seq).refusal = reason
    session.flush()
    refused = _newest_first(conversation.id, PendingMessage.seq).where(col(PendingMessage.refusal).is_not(None))
    if old := session.exec(refused.offset(MAX_REFUSED).limit(MAX_DELETED)).all():
        session.execute(delete(PendingMessage).where(col(PendingMessage.seq).in_(old)))


def remove(session: Session, conversation: Conversation, message: PendingMessage) -> None:
    """Remove a message that the agent server has received.

    Raises:
        LeaseLost: see `mark_attempt`.
    """
    _require_lease(session, conversation)
    session.execute(delete(PendingMessage).where(col(PendingMessage.seq) == message.seq))


def finish_delivery(session: Session, conversation: Conversation) -> None:
    """Record that nothing is left to deliver, unless another transaction has added a message in the meantime.

    `awaits_sandbox` stays set from a pause or the replacement of a container, for which
    `conversation_queries.continue_later` set it, until the sandbox runs again, and if the conversation was deleted
    during the delivery.

    Raises:
        LeaseLost: see `mark_attempt`.
    """
    # Transactions that add a message to the conversation, or delete the conversation, lock the conversation too.
    current = conversation_queries.find(session, conversation.id, lock=True)
    is_deleted = current is not None and current.deleted_at is not None
    # Read under that lock: the transaction of a later pause sets `awaits_sandbox` after this one.
    sandbox = session.exec(select(*PAUSE).where(Sandbox.id == conversation.sandbox_id)).one()
    waits = is_deleted or _may_interrupt(*sandbox) or find_next(session, conversation.id) is not None
    leases.write(session, Conversation, conversation.id, conversation.fence, awaits_sandbox=waits)


def _lock(session: Session, conversation_id: str, owner_id: str, due_at: datetime) -> DeliverMessages | None:
    """Lock the conversation's messages.

    Returns:
        The job that delivers them, or None as long as the conversation is being started.
    """
    conversation = conversation_queries.find(session, conversation_id)
    if conversation is None or not conversation.listed:
        task = start_tasks.find_for_conversation(session, conversation_id, lock=True)
        if task is None or task.owner_id != owner_id:
            raise NotFound("conversation", conversation_id)
        if task.stage == Stage.ERROR or task.cancelled_at is not None:
            raise Conflict("the conversation's start has failed: it can't receive messages")
        if task.stage != Stage.READY:
            return None  # the worker that makes it READY waits for this lock and reads the messages after it
    conversation = conversation_queries.find(session, conversation_id, lock=True)
    if conversation is None or conversation.owner_id != owner_id or not conversation.listed:
        raise NotFound("conversation", conversation_id)
    sandbox = session.get_one(Sandbox, conversation.sandbox_id)
    if sandbox.desired == Desired.DELETED:
        raise Gone(f"the sandbox of conversation {conversation_id} is deleted")
    conversation.awaits_sandbox, conversation.due_at = True, due_at
    return DeliverMessages(conversation_id, sandbox.node_id)


def _may_interrupt(desired: str, status: str, generation: int, observed_generation: int) -> bool:
    """Whether a sandbox is paused, or is to be paused or to get another container: that interrupts its agents.

    One that was resumed outside this service is not paused.
    """
    is_pending = desired != Desired.DELETED and generation != observed_generation
    return is_pending or (desired in PAUSING and status != Status.RUNNING)


def _deliverable(conversation_id: str) -> tuple[Any, Any]:
    return (PendingMessage.conversation_id == conversation_id, col(PendingMessage.refusal).is_(None))


def _newest_first(conversation_id: str, *columns: Any) -> Any:
    found = select(*columns).where(PendingMessage.conversation_id == conversation_id)
    return found.order_by(col(PendingMessage.seq).desc())


def _require_lease(session: Session, conversation: Conversation) -> None:
    leases.write(session, Conversation, conversation.id, conversation.fence, awaits_sandbox=True)
