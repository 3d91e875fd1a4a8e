"""Conversations that share a clone: one folder of a sandbox, and its current branch."""

from sqlalchemy import ColumnElement, and_, or_
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.leasing import leases
from shared.models import Conversation, StartTask
from shared.models.conversations import UNFINISHED
from shared.sql.statements import locked
from shared.states import Stage

# In these states, the agent's next action works on the clone's working tree, whatever branch it is on by then.
AT_WORK = ("running", "waiting_for_confirmation")


def find_at_work(session: Session, task: StartTask, folder: str) -> str | None:
    """The id of another conversation that runs in the clone of a start, or is being started there before it."""
    at_work = or_(col(Conversation.execution_status).in_(AT_WORK), col(Conversation.awaits_sandbox))
    found = select(Conversation.id).where(*_others(task, folder), at_work).order_by(col(Conversation.id)).limit(1)
    return session.exec(found).first() or _find_start(session, task)


def set_branch(session: Session, task: StartTask, folder: str, branch: str) -> None:
    """Set the clone's current branch on all other conversations that share the clone, under the task's lease.

    Raises:
        LeaseLost: another worker owns the task now; nothing was written.
    """
    elsewhere = col(Conversation.selected_branch).is_distinct_from(branch)
    found = select(Conversation).where(*_others(task, folder), elsewhere).order_by(col(Conversation.id))
    if session.exec(found.limit(1)).first() is None:
        return
    leases.write(session, StartTask, task.id, task.fence, updated_at=now())
    for conversation in session.exec(locked(found, key_share=True)).all():
        conversation.selected_branch, conversation.updated_at = branch, now()
        change_recorder.record_change(session, conversation)


def _others(task: StartTask, folder: str) -> tuple[ColumnElement[bool], ...]:
    return (
        col(Conversation.sandbox_id) == task.sandbox_id,
        col(Conversation.working_dir) == folder,
        col(Conversation.listed).is_(True),
        col(Conversation.id) != task.conversation_id,
    )


def _find_start(session: Session, task: StartTask) -> str | None:
    """The conversation of another start in the same clone. Of two concurrent starts the older one comes first."""
    earlier = or_(
        col(StartTask.created_at) < task.created_at,
        and_(col(StartTask.created_at) == task.created_at, col(StartTask.id) < task.id),
    )
    prepared = col(StartTask.stage).not_in((Stage.WORKING, Stage.WAITING_FOR_SANDBOX, Stage.PREPARING_REPOSITORY))
    begun = or_(prepared, and_(col(StartTask.stage) == Stage.PREPARING_REPOSITORY, earlier))
    same_sandbox = (col(StartTask.sandbox_id) == task.sandbox_id, col(StartTask.id) != task.id, *UNFINISHED)
    starts = session.exec(select(StartTask).where(*same_sandbox, begun)).all()
    return next((start.conversation_id for start in starts if _shares_clone(start, task)), None)


def _shares_clone(start: StartTask, task: StartTask) -> bool:
    names = ("selected_repository", "own_folder")
    return not task.request.get("own_folder") and all(
        start.request.get(name) == task.request.get(name) for name in names
    )
