"""Evidence from the store: all its rows, beside what was found at the engines before."""

from collections.abc import Callable, Sequence

from sqlmodel import select

from shared.database import Database
from shared.models import Conversation, Event, Sandbox, SandboxTransition, StartTask
from tests.drills.checker import Evidence
from tests.drills.wishes import Entry
from worker.containers import Listed


def gather(
    database: Database,
    *,
    history: Sequence[Entry],
    containers: Sequence[Listed],
    volumes: Sequence[str],
    excused: Callable[[Sandbox], bool],
    reported: Sequence[tuple[str, str]] = (),
) -> Evidence:
    """Read the rows, last: a container's row is always older than the container."""
    with database.reading() as session:
        return Evidence(
            history=history,
            sandboxes=session.exec(select(Sandbox)).all(),
            transitions=session.exec(select(SandboxTransition)).all(),
            start_tasks=session.exec(select(StartTask)).all(),
            conversations=session.exec(select(Conversation)).all(),
            containers=containers,
            volumes=volumes,
            excused=excused,
            reported=reported,
            events=[(one, two) for one, two in session.exec(select(Event.conversation_id, Event.id)).all()],
        )
