"""What the engine has and the store has never heard of: frozen, kept for a while, and removed a few at a time."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta

import structlog
from sqlalchemy.exc import IntegrityError

from shared.models import UnknownContainer
from shared.sandboxes import quarantine
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState, ContainerSummary, EngineRefused

log = structlog.get_logger()

# In one comparison of store and engine: it holds up no other.
MAX_CONCURRENT = 10


def see_to_unknown(context: WorkerContext, unknown: Mapping[str, ContainerSummary | None]) -> None:
    """Put what is new into quarantine, and remove what may be removed.

    Args:
        unknown: by their names, the containers that no row explains; None where there is only a volume.
    """
    node_id = context.settings.node
    _freeze(context, [item for item in unknown.values() if item is not None])
    with context.database.reading() as session:
        known = quarantine.find(session, node_id)
    names = {row.name for row in known}
    if unknown.keys() != names:
        known = _keep(context, unknown.keys())
        for name in sorted({row.name for row in known} - names):
            log.error("unknown_container", container=name, node=node_id)
    _remove(context, known)


def _freeze(context: WorkerContext, found: Iterable[ContainerSummary]) -> None:
    """Nobody can stop an agent that no row tells of. Frozen, it loses nothing should its row come back."""
    for item in found:
        if item.state == ContainerState.RUNNING:
            try:
                context.engine.freeze(item.name)
            except EngineRefused as error:
                log.warning("unknown_not_frozen", container=item.name, error=str(error))


def _keep(context: WorkerContext, names: Collection[str]) -> Sequence[UnknownContainer]:
    try:
        with context.database.transaction() as session:
            quarantine.keep(session, context.settings.node, names)
            return quarantine.find(session, context.settings.node)
    except IntegrityError:
        return ()  # another worker of the node was quicker: the next comparison finds what it has written


def _remove(context: WorkerContext, rows: Iterable[UnknownContainer]) -> None:
    kept_for = timedelta(seconds=context.settings.quarantine_seconds)
    removable = [row.name for row in rows if quarantine.may_be_removed(row, kept_for)]
    for name in removable[:MAX_CONCURRENT]:
        log.warning("removing_unknown", container=name)
        try:
            context.engine.remove(name)
        except EngineRefused as error:
            log.warning("unknown_not_removed", container=name, error=str(error))
