"""Evidence for the checker: the store's rows, together with the engines' holdings."""

from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType

from sqlmodel import select

from shared.db.database import Database
from shared.models import Conversation, Event, Sandbox, SandboxTransition, StartTask
from shared.states import Desired
from tests.drills.attribution import attribute
from tests.drills.engine_listing import Holdings
from tests.drills.evidence import Evidence
from tests.drills.requests import Entry


def gather(
    database: Database,
    *,
    history: Sequence[Entry],
    held: Holdings,
    installation: str,
    neighbours: Collection[str] = (),
    listed: Mapping[str, str] | None = None,
    is_expected: Callable[[Sandbox], bool],
    reported: Sequence[tuple[str, str]] = (),
    resumed: Collection[str] = (),
    deadlines: Mapping[str, set[Desired]] = MappingProxyType({}),
) -> Evidence:
    """Read the rows. Call it after the engines were listed, because a sandbox's row is created before its container.

    Args:
        held: the containers and volumes of the engines, including other installations'.
        installation: the installation to check.
        neighbours: the other installations that use or have used the engines.
        listed: what the API lists, if it was read.
    """
    with database.reading() as session:
        sandboxes = session.exec(select(Sandbox)).all()
        own = attribute(held, installation, [row.id for row in sandboxes], neighbours=neighbours)
        return Evidence(
            history=history,
            sandboxes=sandboxes,
            transitions=session.exec(select(SandboxTransition)).all(),
            start_tasks=session.exec(select(StartTask)).all(),
            conversations=session.exec(select(Conversation)).all(),
            containers=own.containers,
            volumes=[volume.name for volume in own.volumes],
            strays=own.strays,
            listed=listed,
            is_expected=is_expected,
            reported=reported,
            resumed=resumed,
            deadlines=deadlines,
            events=[(one, two) for one, two in session.exec(select(Event.conversation_id, Event.id)).all()],
        )
