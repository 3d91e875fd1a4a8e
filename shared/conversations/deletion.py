"""Deletion of conversations.

The owner no longer sees a deleted conversation. Its sandbox deletes it as soon as the sandbox runs.
The row of a deleted conversation stays as a tombstone without its content: otherwise the next webhook would create the
conversation again. `shared.retention.tombstones` deletes it later.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Integer, Text, delete, func
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.changes.recorder import Change, Kind, Usage
from shared.clock import now
from shared.conversations import events, pending_messages, start_tasks, webhook_reports
from shared.conversations import queries as conversation_queries
from shared.errors import NotFound
from shared.leasing import leases
from shared.models import Conversation, Event, Sandbox, StartTask
from shared.models.conversations import UNFINISHED
from shared.queue.jobs import DeleteConversation, DeleteSandbox, Job
from shared.retention import tombstones
from shared.sandboxes import desired_state
from shared.sandboxes import queries as sandbox_queries
from shared.sql import locks
from shared.sql.bound_lists import split
from shared.states import Desired

# The status that the change feed shows for a deleted conversation and its start task, in V1's spelling.
GONE = "deleting"
# The limit of one transaction: a conversation may have many thousands of events, and SQLite has one writer.
EVENTS_AT_ONCE = 1000
# The same for conversations: a sandbox may report thousands of descendants of one, and each takes a millisecond.
MAX_TARGETS = 50
# The JSON key of the parent in a stored start request, and the length of its value: a quoted id.
PARENT, PARENT_LENGTH = '"parent_conversation_id":', len('""') + 32
# The columns with a conversation's content, and their values in a tombstone.
BLANK: dict[str, Any] = {
    "title": "",
    "title_settled": True,
    "selected_repository": None,
    "selected_branch": None,
    "git_provider": None,
    "pr_number": [],
    "metrics": None,
    "tags": {},
    "working_dir": None,
}


class _DeletionTarget(NamedTuple):
    id: str
    sandbox_id: str


def delete_conversation(session: Session, conversation_id: str, owner_id: str, *, due_at: datetime) -> list[Job]:
    """Delete the owner's conversation, its sub-conversations and the sandboxes that this leaves empty.

    One call deletes at most `MAX_TARGETS` conversations; `delete_children` deletes the others.
    A sandbox is deleted if it was made for a conversation and contains no other conversation.
    A conversation that is still being started is cancelled. Deleting a deleted conversation changes nothing.

    Returns:
        The jobs to be published after the commit.

    Raises:
        NotFound: the conversation does not exist, its start has failed, or it belongs to another user.
    """
    conversation = conversation_queries.find(session, conversation_id)
    if conversation is not None and conversation.owner_id != owner_id:
        raise NotFound("conversation", conversation_id)
    if conversation is not None and conversation.deleted_at is not None:
        return []
    if conversation is None or not conversation.listed:
        return _cancel_start_of(session, conversation_id, owner_id, due_at)
    return _delete_families(session, [_DeletionTarget(conversation.id, conversation.sandbox_id)], owner_id, due_at)


def delete_children(session: Session, parent_ids: Collection[str], owner_id: str, *, due_at: datetime) -> list[Job]:
    """Delete sub-conversations of these deleted conversations, as `delete_conversation` does.

    One call deletes at most `MAX_TARGETS` conversations: call it until it returns no job.
    """
    parts = split(sorted(parent_ids))
    found = dict.fromkeys(child for part in parts for child in _children(session, part, owner_id))
    return _delete_families(session, list(found)[:MAX_TARGETS], owner_id, due_at)


def deleted_by(jobs: Iterable[Job]) -> set[str]:
    """The ids of the conversations whose deletion returned these jobs."""
    return {job.subject for job in jobs if isinstance(job, DeleteConversation)}


def _delete_families(session: Session, roots: Sequence[_DeletionTarget], owner_id: str, due_at: datetime) -> list[Job]:
    targets = _descendants(session, roots, owner_id)
    # Lock sandboxes first, and rows of one kind in one order: transactions that lock in opposite orders would deadlock.
    sandboxes = [
        sandbox_queries.lock(session, sandbox_id) for sandbox_id in sorted({one.sandbox_id for one in targets})
    ]
    nodes = {sandbox.id: sandbox.node_id for sandbox in sandboxes}
    jobs: list[Job] = [DeleteConversation(one.id, nodes[one.sandbox_id]) for one in sorted(targets)]
    jobs += _end_starts(session, {one.id for one in targets}, owner_id, due_at)
    for one in sorted(targets):
        _delete(session, one.id, due_at)
    for sandbox in sandboxes:
        jobs += _delete_if_empty(session, sandbox, due_at)
    return jobs


def tombstone(session: Session, conversation: Conversation, due_at: datetime) -> None:
    """Make a tombstone of a conversation that the caller has locked, and schedule the work in its sandbox."""
    # Otherwise an agent that was running in the conversation would keep its sandbox from being paused.
    webhook_reports.clear_status(conversation)
    if conversation.deleted_at is None:
        change_recorder.record_usage(session, conversation.owner_id, Usage(conversations=-1))
    conversation.listed = False
    conversation.deleted_at = conversation.updated_at = now()
    conversation.awaits_sandbox = True
    conversation.attempt, conversation.due_at = 0, due_at
    for name, value in BLANK.items():
        setattr(conversation, name, value)


def delete_unlisted(session: Session, conversation_id: str, *, begun: bool) -> bool:
    """Delete the conversation of a failed start, if it has a row.

    Args:
        begun: the agent server may have the conversation.

    Returns:
        Whether a tombstone is left, for a worker to delete that copy, and the events: a sandbox may report any number
        of them before its agent server has the conversation.
    """
    conversation = conversation_queries.find(session, conversation_id, lock=True)
    if conversation is None or conversation.listed:
        return False
    reported = select(Event.seq).where(Event.conversation_id == conversation_id)
    if begun or session.exec(reported.limit(1)).first() is not None:
        tombstone(session, conversation, now())
        return True
    conversation_queries.purge(session, conversation_id)
    return False


def remove_events(session: Session, conversation_id: str, owner_id: str) -> bool:
    """Remove one batch of a conversation's events.

    Returns:
        Whether more events may be left.
    """
    batch = select(Event.seq).where(Event.conversation_id == conversation_id).limit(EVENTS_AT_ONCE)
    return events.remove(session, owner_id, col(Event.seq).in_(batch)) >= EVENTS_AT_ONCE


def finish_deletion(session: Session, conversation: Conversation) -> None:
    """Record, under the caller's lease, that the conversation's sandbox has deleted it. It replaces an old tombstone.

    The tombstone of a failed start is removed as well: the start task itself keeps webhooks from creating the
    conversation again.
    """
    leases.write(session, Conversation, conversation.id, conversation.fence, awaits_sandbox=False, attempt=0)
    if start_tasks.find_for_conversation(session, conversation.id) is None:
        tombstones.limit_conversations(session, conversation.sandbox_id)
        return
    conversation_queries.purge(session, conversation.id)
    conversation.lease_until = conversation.due_at = None  # the row is gone: no lease is left to release


def _cancel_start_of(session: Session, conversation_id: str, owner_id: str, due_at: datetime) -> list[Job]:
    task = start_tasks.find_for_conversation(session, conversation_id)
    if task is None or task.owner_id != owner_id:
        raise NotFound("conversation", conversation_id)
    cancelled = start_tasks.cancel(session, task.id, owner_id, due_at=due_at)
    if cancelled.task.cancelled_at is None:
        raise NotFound("conversation", conversation_id)
    return [cancelled.job]


def _descendants(session: Session, roots: Sequence[_DeletionTarget], owner_id: str) -> set[_DeletionTarget]:
    """The conversations and their descendants, the nearest ones first: at most `MAX_TARGETS`, and as many queries.

    A cycle, which an agent server may report, ends the search.
    """
    found, level = set(roots), list(roots)
    while level and len(found) < MAX_TARGETS:
        parts = split([one.id for one in level])
        children = dict.fromkeys(child for part in parts for child in _children(session, part, owner_id))
        level = [child for child in children if child not in found][: MAX_TARGETS - len(found)]
        found.update(level)
    return found


def _children(session: Session, parents: list[str], owner_id: str) -> Iterator[_DeletionTarget]:
    children = select(Conversation.id, Conversation.sandbox_id).where(
        col(Conversation.parent_id).in_(parents), Conversation.owner_id == owner_id, col(Conversation.listed)
    )
    return (_DeletionTarget(*row) for row in session.exec(children.limit(MAX_TARGETS)).all())


def _delete(session: Session, conversation_id: str, due_at: datetime) -> None:
    conversation = conversation_queries.find(session, conversation_id, lock=True)
    if conversation is None or not conversation.listed:
        return  # another transaction has deleted it in the meantime
    tombstone(session, conversation, due_at)
    pending_messages.delete_all(session, conversation_id)
    change_recorder.record_change_of(session, Change(conversation.owner_id, Kind.CONVERSATION, conversation_id, GONE))


def _end_starts(session: Session, deleted: set[str], owner_id: str, due_at: datetime) -> list[Job]:
    """Delete the start tasks of the conversations, and cancel those of sub-conversations that are being started."""
    own, children = _find_starts(session, deleted, owner_id)
    locking = (locks.in_order(StartTask, col(StartTask.id).in_(part)) for part in split(own | children))
    locked = {task_id for found in locking for task_id in session.execute(found).scalars().all()}
    for task_id in sorted(own & locked):
        change_recorder.record_change_of(session, Change(owner_id, Kind.START_TASK, task_id, GONE))
    for part in split(own):
        ended = delete(StartTask).where(col(StartTask.id).in_(part))
        session.execute(ended.execution_options(synchronize_session=False))
    # A start may have succeeded before its task was locked: the worker that deletes the parent then deletes that
    # conversation too.
    left = (select(StartTask.id).where(col(StartTask.id).in_(part), *UNFINISHED) for part in split(children))
    ids = [task_id for found in left for task_id in session.exec(found.order_by(col(StartTask.id))).all()]
    return [start_tasks.cancel(session, task_id, owner_id, due_at=due_at).job for task_id in ids]


def _find_starts(session: Session, deleted: set[str], owner_id: str) -> tuple[set[str], set[str]]:
    """The ids of the start tasks of the conversations, and of their sub-conversations that are being started."""
    of_deleted = (select(StartTask.id).where(col(StartTask.conversation_id).in_(part)) for part in split(deleted))
    own = {task_id for found in of_deleted for task_id in session.exec(found).all()}
    found = session.execute(_find_parents(session).where(col(StartTask.owner_id) == owner_id, *UNFINISHED)).all()
    children = {task_id for task_id, parent in found if parent[1:-1] in deleted}
    return own, children - own


def _find_parents(session: Session) -> Any:
    """Build the query for the ids and quoted parent ids of start tasks. It does not read whole requests, of up to 4 MB.

    The query searches the text, because databases cannot parse it: PostgreSQL rejects a document with the escape of
    NUL. The first occurrence of `PARENT` is the request's own field: no field before it has names that a user chooses,
    and quotes in texts are escaped.
    """
    request = col(StartTask.request)
    find = func.strpos if session.get_bind().dialect.name == "postgresql" else func.instr
    value = func.substr(request, find(request, PARENT, type_=Integer) + len(PARENT), PARENT_LENGTH, type_=Text)
    return sql_select(col(StartTask.id), value)


def _delete_if_empty(session: Session, sandbox: Sandbox, due_at: datetime) -> Sequence[Job]:
    """Delete a sandbox, which the caller has locked, if it was made for a conversation and has none left."""
    listed = select(Conversation.id).where(Conversation.sandbox_id == sandbox.id, col(Conversation.listed))
    starting = select(StartTask.id).where(
        StartTask.sandbox_id == sandbox.id, col(StartTask.cancelled_at).is_(None), *UNFINISHED
    )
    others = (session.exec(statement.limit(1)).first() for statement in (listed, starting))
    if sandbox.desired == Desired.DELETED or not sandbox.goes_with_conversations or any(others):
        return ()
    desired_state.set_desired(session, sandbox, Desired.DELETED, due_at=due_at)
    return (DeleteSandbox(sandbox.id, sandbox.node_id),)
