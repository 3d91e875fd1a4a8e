"""Human-readable descriptions of jobs' rows. They contain no titles, which are arbitrary text."""

from typing import Any

from sqlmodel import Session, col, select

from shared.models import Conversation, Sandbox, StartTask, User
from shared.queue.jobs import CancelStart, StartConversation

START_JOBS = (StartConversation.task, CancelStart.task)


def describe_subject(session: Session, task: str, row_id: str) -> str:
    """The owner, the kind and the id of the row that a job of that task is about."""
    kind, table = _table_of(task)
    query = select(table.id, User.name).outerjoin(User, col(User.id) == table.owner_id).where(table.id == row_id)
    found = session.exec(query).first()
    owner = "removed" if found is None else found[1] or "warm pool"
    return f"{owner} · {kind} {row_id}"


def _table_of(task: str) -> tuple[str, Any]:
    if task in START_JOBS:
        return "start of a conversation", StartTask
    return ("conversation", Conversation) if task.startswith("conversations.") else ("sandbox", Sandbox)
