"""Start tasks: their queue, their stages, their reads."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import func, update
from sqlmodel import Session, col, select

from shared import changes, leases
from shared.clock import now
from shared.errors import IllegalMove
from shared.models import Conversation, Sandbox, StartTask
from shared.states import FINAL_STAGES, Desired, Reason, Stage, stage_moves
from shared.store import deadlines
from shared.store.pages import Order, Page, read_page

SORT_ORDERS = {
    "CREATED_AT": (col(StartTask.created_at), False),
    "CREATED_AT_DESC": (col(StartTask.created_at), True),
    "UPDATED_AT": (col(StartTask.updated_at), False),
    "UPDATED_AT_DESC": (col(StartTask.updated_at), True),
}


def find_for_conversation(session: Session, conversation_id: str) -> StartTask | None:
    """The task that starts, or started, that conversation."""
    return session.exec(select(StartTask).where(StartTask.conversation_id == conversation_id)).first()


def advance(
    session: Session,
    task: StartTask,
    stage: Stage,
    *,
    reason: Reason | None = None,
    detail: str | None = None,
) -> None:
    """Record the stage that begins now, under the lease the caller holds.

    Raises:
        LeaseLost: another worker owns the row now; nothing was written.
        IllegalMove: the stage can't follow the present one; nothing was written.
    """
    if stage not in stage_moves(Stage(task.stage)):
        raise IllegalMove(f"start task {task.id}: {task.stage} → {stage}")
    values: dict[str, Any] = {"stage": stage, "reason": reason, "detail": detail, "updated_at": now()}
    if stage.is_final:
        values["secrets"] = None  # the agent server has them, or nobody needs them any more
    leases.write(session, StartTask, task.id, task.fence, **values)
    task.stage = stage
    changes.note(session, task)


def wake(session: Session, sandbox_id: str, at: datetime) -> Sequence[str]:
    """Ask for a look at the unfinished tasks that wait for a sandbox.

    Returns:
        Their ids, to be published after the commit.
    """
    waiting = (col(StartTask.sandbox_id) == sandbox_id, col(StartTask.stage).not_in(FINAL_STAGES))
    ids = session.exec(select(StartTask.id).where(*waiting)).all()
    if ids:
        session.execute(update(StartTask).where(*waiting).values(due_at=at))
    return ids


def discard_sandbox(session: Session, task: StartTask, at: datetime) -> str | None:
    """Wish the sandbox away that was made for a task that failed, unless somebody else uses it by now.

    Returns:
        Its node's id, to hurry the deletion, if there is something to delete.
    """
    if not task.made_sandbox or task.sandbox_id is None:
        return None
    values = {"desired": Desired.DELETED, "generation": col(Sandbox.generation) + 1, "due_at": at, "wish_reason": None}
    alive = (col(Sandbox.id) == task.sandbox_id, col(Sandbox.desired) != Desired.DELETED, *_used_by_nobody_else(task))
    if session.execute(update(Sandbox).where(*alive).values(**values)).rowcount:  # type: ignore[attr-defined]
        changes.note(session, deadlines.refresh(session, task.sandbox_id))
    return session.exec(select(Sandbox.node_id).where(Sandbox.id == task.sandbox_id)).one()


def _used_by_nobody_else(task: StartTask) -> tuple[Any, Any]:
    other = select(StartTask.id).where(
        StartTask.sandbox_id == task.sandbox_id, StartTask.id != task.id, StartTask.stage != Stage.ERROR
    )
    listed = select(Conversation.id).where(Conversation.sandbox_id == task.sandbox_id, col(Conversation.listed))
    return ~other.exists(), ~listed.exists()


def get_many(session: Session, ids: list[str], owner_id: str) -> list[tuple[StartTask, Sandbox | None] | None]:
    """The owner's tasks of those ids in order with their sandboxes, None for an unknown one."""
    statement = _with_sandbox().where(col(StartTask.id).in_(ids), StartTask.owner_id == owner_id)
    found = {task.id: (task, sandbox) for task, sandbox in session.exec(statement).all()}
    return [found.get(task_id) for task_id in ids]


def final(session: Session, ids: Collection[str]) -> set[str]:
    """Those of the tasks that nothing follows for, or that are gone."""
    unfinished = select(StartTask.id).where(col(StartTask.id).in_(ids), col(StartTask.stage).not_in(FINAL_STAGES))
    return set(ids) - set(session.exec(unfinished).all())


def search(
    session: Session,
    owner_id: str,
    *,
    conversation_id: str | None,
    created_from: datetime | None,
    sort_order: str,
    page_id: str | None,
    limit: int,
) -> Page[tuple[StartTask, Sandbox | None]]:
    """A page of the owner's tasks."""
    column, descending = SORT_ORDERS[sort_order]
    order = Order(column, col(StartTask.id), descending)
    statement = _with_sandbox().where(*_filters(owner_id, conversation_id, created_from))
    return read_page(session, statement, order, page_id, limit)


def count(session: Session, owner_id: str, *, conversation_id: str | None, created_from: datetime | None) -> int:
    """How many of the owner's tasks `search` would list with these filters."""
    statement = select(func.count()).select_from(StartTask)
    return session.exec(statement.where(*_filters(owner_id, conversation_id, created_from))).one()


def _with_sandbox() -> Any:
    return select(StartTask, Sandbox).outerjoin(Sandbox, col(Sandbox.id) == col(StartTask.sandbox_id))


def _filters(owner_id: str, conversation_id: str | None, created_from: datetime | None) -> list[Any]:
    filters: list[Any] = [StartTask.owner_id == owner_id]
    if conversation_id is not None:
        # V1 filters by the *resulting* conversation (wire contract 1.2): a task that has none yet has no match.
        filters += [StartTask.conversation_id == conversation_id, StartTask.stage == Stage.READY]
    if created_from is not None:
        filters.append(col(StartTask.created_at) >= created_from)
    return filters
