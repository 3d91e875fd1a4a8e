"""Start tasks: their stages, changes and queries."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

from sqlalchemy import and_, delete, func, text, update
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.conversations import queries as conversation_queries
from shared.crypto import Vault
from shared.db.database import Database
from shared.errors import Cancelled, Conflict, IllegalTransition, NotFound
from shared.leasing import leases
from shared.models import Conversation, Sandbox, StartTask
from shared.models.columns import UtcDateTime
from shared.models.conversations import HAS_FAILED_AT, IS_FAILED, UNFINISHED
from shared.observability import metrics
from shared.queue.jobs import CancelStart
from shared.sandboxes import desired_state
from shared.sandboxes import queries as sandbox_queries
from shared.sql import locks
from shared.sql.due_checks import when_passed
from shared.sql.pagination import Order, Page, check_batch, measure, read_bounded_page
from shared.sql.statements import bind_list, bind_list_values, count_written, guarded_update, locked, rounded
from shared.states import STAGE_TRANSITIONS, Desired, Reason, Stage

SORT_ORDERS = {
    "CREATED_AT": (col(StartTask.created_at), False),
    "CREATED_AT_DESC": (col(StartTask.created_at), True),
    "UPDATED_AT": (col(StartTask.updated_at), False),
    "UPDATED_AT_DESC": (col(StartTask.updated_at), True),
}

# A field that is stored with the request and not shown: its original title, after its owner has chosen another one.
SENT_TITLE = "sent_title"
# How long failed starts are kept; how many of an owner's are kept, the newest ones; and the bytes of their requests.
RETENTION = timedelta(days=7)
MAX_FAILED, MAX_FAILED_BYTES = 1000, 16 * 1024 * 1024
EXPIRED = when_passed(col(StartTask.updated_at), text(HAS_FAILED_AT), delay=RETENTION)


@dataclass(frozen=True)
class StartTaskFilter:
    """A selection of start tasks; a field that is None does not filter."""

    conversation_id: str | None = None
    created_from: datetime | None = None
    stage: Stage | None = None


class CancelledStart(NamedTuple):
    """A start task that its owner has cancelled, or that had failed already."""

    task: StartTask
    sandbox: Sandbox | None

    @property
    def job(self) -> CancelStart:
        return CancelStart(self.task.id, self.sandbox.node_id if self.sandbox else None)


def find_for_conversation(session: Session, conversation_id: str, *, lock: bool = False) -> StartTask | None:
    """The start task of that conversation, finished or not."""
    statement = select(StartTask).where(StartTask.conversation_id == conversation_id)
    return session.exec(locked(statement) if lock else statement).first()


def secrets_of(session: Session, vault: Vault, conversation_id: str) -> dict[str, str]:
    """The secrets that a conversation's start request brought, in clear."""
    sealed = session.exec(select(StartTask.secrets).where(StartTask.conversation_id == conversation_id)).first()
    found: dict[str, str] = json.loads(vault.decrypt(sealed)) if sealed else {}
    return found


def rename(session: Session, conversation_id: str, owner_id: str, title: str) -> bool:
    """Change the title of a conversation that is being started; it takes effect when the start is READY.

    Returns:
        False if the owner is not starting a conversation under that id. Nothing is written then.

    Raises:
        Conflict: the start of the conversation has failed.
    """
    # The task is locked before its conversation, in the same order as by the worker that makes it READY.
    task = find_for_conversation(session, conversation_id, lock=True)
    if task is None or task.owner_id != owner_id or task.stage == Stage.READY or task.cancelled_at is not None:
        return False
    if task.stage == Stage.ERROR:
        raise Conflict(f"the conversation's start has failed: {task.detail}")
    task.request = {SENT_TITLE: task.request.get("title")} | task.request | {"title": title}
    task.updated_at = now()
    change_recorder.record_change(session, task)
    return True


def sent_request(task: StartTask) -> dict[str, Any]:
    """The task's request with the title that it was sent with."""
    request: dict[str, Any] = task.request
    return request | {"title": request[SENT_TITLE]} if SENT_TITLE in request else request


def advance(
    session: Session,
    task: StartTask,
    stage: Stage,
    *,
    reason: Reason | None = None,
    detail: str | None = None,
) -> None:
    """Record the stage that begins now, under the caller's lease. A repeated stage is no change that its owner sees.

    Raises:
        LeaseLost: another worker owns the row now; nothing was written.
        IllegalTransition: the stage can't follow the present one; nothing was written.
        Cancelled: the start was cancelled, so that only ERROR may follow; the caller must roll the transaction back.
    """
    if stage not in STAGE_TRANSITIONS[task.stage]:
        raise IllegalTransition(f"start task {task.id}: {task.stage} → {stage}")
    values: dict[str, Any] = {"stage": stage, "reason": reason, "detail": detail}
    values |= {"updated_at": now()} if stage != task.stage else {}
    if stage == Stage.ERROR:
        values["secrets"] = None  # a started conversation needs its secrets for redaction; a failed one does not
    [task.cancelled_at] = leases.write(session, StartTask, task.id, task.fence, returning=("cancelled_at",), **values)
    if task.cancelled_at is not None and stage != Stage.ERROR:
        raise Cancelled(f"start task {task.id} is cancelled")
    if stage == task.stage:
        return
    metrics.observe_stage(task.stage, values["updated_at"] - task.updated_at)
    if stage == Stage.READY:
        metrics.observe_stage("total", values["updated_at"] - task.created_at)
    task.stage, task.updated_at = stage, values["updated_at"]
    change_recorder.record_change(session, task)
    if stage == Stage.ERROR:
        limit_failed(session, task.owner_id)


def limit_failed(session: Session, owner_id: str) -> None:
    """Delete the owner's failed starts beyond the newest `MAX_FAILED`, and requests beyond `MAX_FAILED_BYTES`."""
    failed = select(StartTask.id, measure(session, col(StartTask.request))).where(StartTask.owner_id == owner_id)
    newest_first = failed.where(text(IS_FAILED)).order_by(col(StartTask.updated_at).desc(), col(StartTask.id).desc())
    rows = session.exec(newest_first.limit(2 * MAX_FAILED)).all()
    totals = accumulate(size for _, size in rows[:MAX_FAILED])
    large = [row_id for (row_id, _), total in zip(rows, totals, strict=False) if total > MAX_FAILED_BYTES]
    _write_unlocked(session, large, update(StartTask).where(col(StartTask.request) != {}).values(request={}))
    _write_unlocked(session, [row_id for row_id, _ in rows[MAX_FAILED:]], delete(StartTask))


def delete_expired(session: Session, *, limit: int = 100) -> None:
    """Delete failed starts whose retention has ended."""
    expired = text(HAS_FAILED_AT), col(StartTask.updated_at) <= now() - RETENTION
    ids = session.exec(select(StartTask.id).where(*expired).limit(limit)).all()
    _write_unlocked(session, ids, delete(StartTask))


def cancel(session: Session, task_id: str, owner_id: str, *, due_at: datetime) -> CancelledStart:
    """Request the cancellation of a start, which the worker checks before its next action.

    A failed start stays unchanged.

    Raises:
        NotFound: the task does not exist or belongs to another user.
        Conflict: the start is READY.
    """
    own = (col(StartTask.id) == task_id, col(StartTask.owner_id) == owner_id)
    at = func.coalesce(col(StartTask.cancelled_at), now(), type_=UtcDateTime())
    count_written(session, guarded_update(StartTask, and_(*own, *UNFINISHED), {"cancelled_at": at, "due_at": due_at}))
    found = session.exec(_with_sandbox().where(*own).execution_options(populate_existing=True)).first()
    if found is None:
        raise NotFound("start task", task_id)
    cancelled = CancelledStart(*found)
    if (task := cancelled.task).stage == Stage.READY:
        raise Conflict(f"the start has succeeded: DELETE /api/v1/app-conversations/{task.conversation_id} undoes it")
    return cancelled


def delete_unused_sandbox(session: Session, task: StartTask, at: datetime) -> str | None:
    """Set the desired state DELETED on the sandbox of a failed task, unless another conversation or start needs it.

    A sandbox that its owner created stays. One that was made for another start is deleted, too: the conversation of
    that start may have been deleted while this task used the sandbox.

    Returns:
        The id of the sandbox's node, to enqueue the deletion there; None if the sandbox stays, or has no node.
    """
    if task.sandbox_id is None:
        return None
    # Without the lock a start that joins the sandbox concurrently would be missed.
    sandbox = sandbox_queries.lock(session, task.sandbox_id)
    is_kept = sandbox.desired == Desired.DELETED or not sandbox.goes_with_conversations
    if is_kept or _is_used_by_others(session, task):
        return None
    desired_state.set_desired(session, sandbox, Desired.DELETED, due_at=at)
    return sandbox.node_id


def is_parent_deleted(session: Session, task: StartTask, parent_id: str) -> bool:
    """Whether the parent of the task's conversation was deleted. If not, it can't be before the transaction ends.

    The task is locked before the conversations, in the same order as by a deletion.
    """
    session.execute(locks.in_order(StartTask, col(StartTask.id) == task.id))
    session.execute(locks.in_order(Conversation, col(Conversation.id).in_((parent_id, task.conversation_id))))
    return conversation_queries.is_deleted(session, parent_id)


def _is_used_by_others(session: Session, task: StartTask) -> bool:
    other = select(StartTask.id).where(
        StartTask.sandbox_id == task.sandbox_id, StartTask.id != task.id, StartTask.stage != Stage.ERROR
    )
    listed = select(Conversation.id).where(Conversation.sandbox_id == task.sandbox_id, col(Conversation.listed))
    return any(session.exec(found.limit(1)).first() is not None for found in (other, listed))


def get_many(session: Session, ids: list[str], owner_id: str) -> list[tuple[StartTask, Sandbox | None] | None]:
    """The owner's tasks with those ids and their sandboxes, in that order; None for an unknown id.

    Raises:
        TooLarge: the requests of two or more tasks together exceed `MAX_PAGE_BYTES`.
    """
    own = (col(StartTask.id).in_(ids), StartTask.owner_id == owner_id)
    if len(ids) > 1:
        check_batch(session.exec(select(measure(session, col(StartTask.request))).where(*own)).all(), "start tasks")
    found = {task.id: (task, sandbox) for task, sandbox in session.exec(_with_sandbox().where(*own)).all()}
    return [found.get(task_id) for task_id in ids]


def final(database: Database, ids: Collection[str]) -> set[str]:
    """The ids of those tasks that are in a final stage or no longer exist."""
    found = database.fetch(_unfinished(rounded(len(ids))), bind_list_values("id", list(ids)))
    return set(ids) - {task_id for (task_id,) in found}


def search(
    session: Session, owner_id: str, selection: StartTaskFilter, *, sort_order: str, page_id: str | None, limit: int
) -> Page[tuple[StartTask, Sandbox | None]]:
    """A page of the owner's tasks.

    It has fewer than `limit` tasks if their requests together exceed `MAX_PAGE_BYTES`.
    """
    column, descending = SORT_ORDERS[sort_order]
    order = Order(column, col(StartTask.id), descending)
    filters = _filters(owner_id, selection)
    sizes = select(measure(session, col(StartTask.request))).where(*filters)
    return read_bounded_page(session, _with_sandbox().where(*filters), sizes, order, page_id, limit)


def count(session: Session, owner_id: str, selection: StartTaskFilter) -> int:
    """The number of the owner's tasks that `search` lists with these filters."""
    return session.exec(select(func.count()).select_from(StartTask).where(*_filters(owner_id, selection))).one()


def _write_unlocked(session: Session, ids: Sequence[str], statement: Any) -> None:
    """Change or delete these tasks, except those that another transaction has locked."""
    unlocked = locks.in_order(StartTask, col(StartTask.id).in_(ids), skip_locked=True)
    if ids and (found := session.execute(unlocked).scalars().all()):
        session.execute(statement.where(col(StartTask.id).in_(found)).execution_options(synchronize_session=False))


def _with_sandbox() -> Any:
    return select(StartTask, Sandbox).outerjoin(Sandbox, col(Sandbox.id) == col(StartTask.sandbox_id))


def _filters(owner_id: str, selection: StartTaskFilter) -> list[Any]:
    filters: list[Any] = [StartTask.owner_id == owner_id]
    if selection.conversation_id is not None:
        # V1 filters by the resulting conversation (wire contract 1.2): a task that has none yet does not match.
        filters += [StartTask.conversation_id == selection.conversation_id, StartTask.stage == Stage.READY]
    if selection.created_from is not None:
        filters.append(col(StartTask.created_at) >= selection.created_from)
    if selection.stage is not None:
        filters.append(StartTask.stage == selection.stage)
    return filters


# --- prepared statements ----------------------------------------------------------------------------------------------


@cache
def _unfinished(number: int) -> Any:
    return select(StartTask.id).where(col(StartTask.id).in_(bind_list("id", number)), *UNFINISHED)
