"""What waits for a sandbox: start tasks, until it settles, and conversations that have something to do in it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import literal, select, union_all, update
from sqlmodel import Session, col

from shared.jobs import Job, RefreshConversation, StartConversation
from shared.models import Conversation, StartTask
from shared.statements import give, given, send
from shared.store.start_tasks import UNFINISHED


class Followers(NamedTuple):
    """The ids of the rows that are to be looked at."""

    starts: Sequence[str] = ()
    conversations: Sequence[str] = ()

    def jobs(self, node_id: str | None) -> list[Job]:
        """What hurries them, for the worker of that node."""
        starts = (StartConversation(task_id, node_id) for task_id in self.starts)
        talks = (RefreshConversation(conversation_id, node_id) for conversation_id in self.conversations)
        return [*starts, *talks]


NOBODY = Followers()


def wake(session: Session, sandbox_id: str, at: datetime) -> Followers:
    """Ask for a look at them.

    Returns:
        Its ids, to be published after the commit.
    """
    rows = send(session, WAITING, give(sandbox_id=sandbox_id))
    starts, talks = ([row_id for table, row_id in rows if table == name] for name in (START, TALK))
    for table, ids in ((StartTask, starts), (Conversation, talks)):
        if ids:
            session.execute(update(table).where(col(table.id).in_(ids)).values(due_at=at))
    return Followers(starts, talks)


# --- the statement, made once -----------------------------------------------------------------------------------------

START, TALK = "start", "talk"


def _waiting(name: str, table: Any, *conditions: Any) -> Any:
    return select(literal(name).label("table"), table.id).where(table.sandbox_id == given("sandbox_id"), *conditions)


# One message for both: it is on the way of every sandbox that settles.
WAITING = union_all(
    _waiting(START, StartTask, *UNFINISHED), _waiting(TALK, Conversation, col(Conversation.awaits_sandbox))
)
