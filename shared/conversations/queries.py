"""Queries of stored conversations, and changes of them."""

import contextlib
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from typing import Any

from sqlalchemy import delete
from sqlalchemy.exc import IntegrityError
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.changes.recorder import Usage
from shared.clock import now
from shared.conversations import events, webhook_reports
from shared.conversations import quotas as conversation_quotas
from shared.conversations.report_values import read_uuid
from shared.db.database import Database
from shared.errors import NotFound
from shared.models import Conversation, Event, Sandbox, StartTask
from shared.settings import NO_QUOTAS, StoredQuotas
from shared.sql.statements import bind, bind_values, get_locked, locked
from shared.states import Desired, Stage, Status

# Per sandbox: the maximum number of running conversations that a worker reads from its agent server's list, or the
# database.
MAX_RUNNING = 100
LOST_DETAIL = "the agent ran on a node that was lost. The sandbox was recreated on another, without this conversation"


def find(session: Session, conversation_id: str, *, lock: bool = False) -> Conversation | None:
    """The conversation with that id, of any owner."""
    return get_locked(session, Conversation, conversation_id) if lock else session.get(Conversation, conversation_id)


def are_in(database: Database, sandbox_id: str) -> bool:
    """Whether the store has any conversation of a sandbox, deleted ones included."""
    return bool(database.fetch(_in_sandbox(), bind_values(sandbox_id=sandbox_id)))


def get(session: Session, conversation_id: str, owner_id: str, *, lock: bool = False) -> Conversation:
    """The owner's conversation with that id.

    Raises:
        NotFound: the conversation does not exist, its start has not succeeded yet, or it belongs to another user.
    """
    conversation = find(session, conversation_id, lock=lock)
    if conversation is None or conversation.owner_id != owner_id or not conversation.listed:
        raise NotFound("conversation", conversation_id)
    return conversation


def get_shown(session: Session, conversation_id: str, owner_id: str) -> tuple[Conversation, Sandbox]:
    """The owner's conversation with that id, and its sandbox.

    Raises:
        NotFound: as for `get`.
    """
    found = get_many(session, [conversation_id], owner_id)[0]
    if found is None:
        raise NotFound("conversation", conversation_id)
    return found


def change(session: Session, conversation_id: str, owner_id: str, columns: Mapping[str, Any]) -> None:
    """Change the columns of a conversation that its owner may change.

    Args:
        session: a transaction; the conversation is locked until it ends.
        columns: new values by name. A new title is never replaced by a generated one; a title of None restores the
            default title. If there are no values, nothing is written.

    Raises:
        NotFound: as for `get`.
    """
    conversation = get(session, conversation_id, owner_id, lock=True)
    if not columns:
        return
    for name, value in columns.items():
        setattr(conversation, name, value)
    if "title" in columns:
        conversation.title_settled = columns["title"] is not None
        conversation.title = columns["title"] or default_title(conversation_id)
    conversation.updated_at = now()
    session.add(conversation)
    change_recorder.record_change(session, conversation)


def default_title(conversation_id: str) -> str:
    """The title until a better one is known, as V1 makes it (wire contract 3.2, step 12)."""
    return f"Conversation {conversation_id[:5]}"


def find_or_adopt(
    session: Session, conversation_id: str, sandbox: Sandbox, limits: StoredQuotas = NO_QUOTAS.stored
) -> Conversation | None:
    """Return the conversation that a sandbox reports on, locked.

    A conversation that a client created in the sandbox itself is added to the store.

    Returns:
        None if the conversation belongs to another sandbox, or its start has failed; also if it is unknown and the
        sandbox has no owner or is not live. For a deleted conversation its tombstone is returned.

    Raises:
        QuotaExceeded: the conversation would be added, and its sandbox or owner has the maximum number already.
    """
    conversation = find(session, conversation_id, lock=True)
    if conversation is None and sandbox.owner_id is not None and _is_live(session, sandbox.id):
        task = session.exec(select(StartTask).where(StartTask.conversation_id == conversation_id)).first()
        if task is None or (task.sandbox_id == sandbox.id and task.stage != Stage.ERROR):
            if task is None:
                conversation_quotas.check_sandbox(session, sandbox.id)
            added = _new(conversation_id, sandbox, sandbox.owner_id, listed=task is None)
            conversation = _adopt(session, added, limits)
    matches = conversation is not None and conversation.sandbox_id == sandbox.id
    return conversation if matches else None


def list_running(session: Session, sandbox_id: str) -> list[str]:
    """The ids of the sandbox's conversations whose agents run, as far as is known: at most `MAX_RUNNING`."""
    running = (Conversation.sandbox_id == sandbox_id, Conversation.execution_status == "running")
    return list(session.exec(select(Conversation.id).where(*running).limit(MAX_RUNNING)).all())


def list_sandboxes_with_runs(session: Session, node_id: str) -> list[str]:
    """The ids of a node's RUNNING sandboxes in which an agent runs, as far as is known."""
    runs = select(Conversation.id).where(
        Conversation.sandbox_id == Sandbox.id, Conversation.execution_status == "running"
    )
    there = select(Sandbox.id).where(Sandbox.node_id == node_id, Sandbox.status == Status.RUNNING)
    return list(session.exec(there.where(runs.exists())).all())


def continue_later(session: Session, sandbox: Sandbox, ids: Iterable[str]) -> None:
    """Mark conversations of a sandbox to be continued when it runs again: their agents are interrupted.

    Args:
        session: a transaction.
        sandbox: the row as claimed; nothing is written if another worker has claimed it since.
        ids: conversation ids as the sandbox's agent server reports them, unchecked.
    """
    claimed = select(Sandbox.id).where(Sandbox.id == sandbox.id, Sandbox.fence == sandbox.fence)
    known = {id_ for id_ in map(read_uuid, islice(ids, MAX_RUNNING)) if id_ is not None}
    found = select(Conversation).where(
        col(Conversation.id).in_(known), Conversation.sandbox_id == sandbox.id, claimed.exists()
    )
    # In the order of ids, like every transaction that locks two or more of them.
    for conversation in session.exec(locked(found.order_by(col(Conversation.id)))).all():
        conversation.awaits_sandbox = True


def end_lost_runs(session: Session, sandbox_id: str) -> None:
    """Record an error in the conversations of a sandbox whose agents ran on a lost node, after the sandbox has moved.

    Otherwise they would be shown as running for good, and would keep the sandbox from being paused.
    """
    running = select(Conversation).where(
        Conversation.sandbox_id == sandbox_id, Conversation.execution_status == "running"
    )
    for conversation in session.exec(locked(running.order_by(col(Conversation.id)))).all():
        webhook_reports.end_lost_run(conversation, webhook_reports.NODE_LOST, LOST_DETAIL)
        change_recorder.record_change(session, conversation)


def publish(session: Session, conversation_id: str) -> Conversation | None:
    """List and lock the conversation of a start that has succeeded; the caller has locked its task.

    It was created when its start was requested: V0's list shows it from then on, and its place there must not change.
    """
    conversation = find(session, conversation_id, lock=True)
    if conversation is not None:
        _adopt_request(session, conversation)
        conversation.listed = True
        conversation.updated_at = now()
        change_recorder.record_change(session, conversation)
    return conversation


def is_deleted(session: Session, conversation_id: str) -> bool:
    """Whether a conversation was deleted. If it was not, it can't be deleted before the transaction ends."""
    conversation = find(session, conversation_id, lock=True)
    return conversation is not None and conversation.deleted_at is not None


def purge(session: Session, conversation_id: str) -> None:
    """Delete a conversation whose start failed, with the events of its webhooks. The caller has locked it."""
    conversation = find(session, conversation_id)
    if conversation is None:
        return
    events.remove(session, conversation.owner_id, col(Event.conversation_id) == conversation_id)
    if conversation.deleted_at is None:
        change_recorder.record_usage(session, conversation.owner_id, Usage(conversations=-1))
    session.execute(delete(Conversation).where(col(Conversation.id) == conversation_id))


def get_many(session: Session, ids: list[str], owner_id: str) -> list[tuple[Conversation, Sandbox] | None]:
    """The owner's conversations with those ids and their sandboxes, in that order; None for an unknown id."""
    statement = _with_sandbox().where(
        col(Conversation.id).in_(ids), Conversation.owner_id == owner_id, col(Conversation.listed)
    )
    found = {conversation.id: (conversation, sandbox) for conversation, sandbox in session.exec(statement).all()}
    return [found.get(conversation_id) for conversation_id in ids]


def children(session: Session, parent_ids: list[str], owner_id: str) -> dict[str, list[str]]:
    """The ids of the sub-conversations of each parent, oldest first."""
    statement = select(Conversation.parent_id, Conversation.id).where(
        col(Conversation.parent_id).in_(parent_ids),
        Conversation.owner_id == owner_id,
        col(Conversation.listed),
    )
    found: dict[str, list[str]] = {}
    for parent_id, child_id in session.exec(statement.order_by(col(Conversation.created_at))).all():
        found.setdefault(str(parent_id), []).append(child_id)
    return found


def _is_live(session: Session, sandbox_id: str) -> bool:
    """Whether a sandbox runs or its desired state is RUNNING: no other sandbox creates conversations."""
    sandbox = session.get_one(Sandbox, sandbox_id)
    if sandbox.desired == Desired.DELETED or sandbox.status in (Status.DELETING, Status.DELETED):
        return False
    return sandbox.desired == Desired.RUNNING or sandbox.status == Status.RUNNING


def _new(conversation_id: str, sandbox: Sandbox, owner_id: str, *, listed: bool) -> Conversation:
    title = default_title(conversation_id)
    return Conversation(id=conversation_id, owner_id=owner_id, sandbox_id=sandbox.id, title=title, listed=listed)


def _adopt(session: Session, added: Conversation, limits: StoredQuotas) -> Conversation | None:
    # Two webhooks may report the same new conversation at the same time: the second one finds the row of the first.
    with contextlib.suppress(IntegrityError), change_recorder.savepoint(session):
        session.add(added)
        session.flush()
        # The quota of an unlisted conversation was checked when its start was accepted.
        conversation_quotas.add_conversation(session, added.owner_id, limits if added.listed else NO_QUOTAS.stored)
    found = find(session, added.id, lock=True)
    if found is not None:
        change_recorder.record_change(session, found)
    return found


def _adopt_request(session: Session, conversation: Conversation) -> None:
    """Take over the time and the title of the request; its owner may have changed the title since the row was made."""
    of_start = select(StartTask.created_at, StartTask.request).where(StartTask.conversation_id == conversation.id)
    conversation.created_at, request = session.exec(of_start).one()
    if title := request.get("title"):
        conversation.title, conversation.title_settled = title, True


def _with_sandbox() -> Any:
    return select(Conversation, Sandbox).join(Sandbox, col(Sandbox.id) == col(Conversation.sandbox_id))


@cache
def _in_sandbox() -> Any:
    return select(Conversation.id).where(Conversation.sandbox_id == bind("sandbox_id")).limit(1)
