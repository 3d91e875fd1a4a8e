"""What the engine has and the store has never heard of: frozen, kept for a while, and removed a few at a time."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta

import structlog
from sqlalchemy.exc import IntegrityError

from shared.models import UnknownContainer
from shared.store import quarantine
from worker.containers import ContainerState, EngineRefused, Listed
from worker.parts import Parts

log = structlog.get_logger()

# In one comparison of store and engine: it holds up no other.
MOST_AT_ONCE = 10


def see_to_unknown(parts: Parts, unknown: Mapping[str, Listed | None]) -> None:
    """Put what is new into quarantine, and remove what may be removed.

    Args:
        unknown: by their names, the containers that no row explains; None where there is only a volume.
    """
    node_id = parts.settings.node
    _freeze(parts, [item for item in unknown.values() if item is not None])
    with parts.database.reading() as session:
        known = quarantine.find(session, node_id)
    names = {row.name for row in known}
    if unknown.keys() != names:
        known = _keep(parts, unknown.keys())
        for name in sorted({row.name for row in known} - names):
            log.error("unknown_container", container=name, node=node_id)
    _remove(parts, known)


def _freeze(parts: Parts, found: Iterable[Listed]) -> None:
    """Nobody can stop an agent that no row tells of. Frozen, it loses nothing should its row come back."""
    for item in found:
        if item.state == ContainerState.RUNNING:
            try:
                parts.engine.freeze(item.name)
            except EngineRefused as error:
                log.warning("unknown_not_frozen", container=item.name, error=str(error))


def _keep(parts: Parts, names: Collection[str]) -> Sequence[UnknownContainer]:
    try:
        with parts.database.transaction() as session:
            quarantine.keep(session, parts.settings.node, names)
            return quarantine.find(session, parts.settings.node)
    except IntegrityError:
        return ()  # another worker of the node was quicker: the next comparison finds what it has written


def _remove(parts: Parts, rows: Iterable[UnknownContainer]) -> None:
    kept_for = timedelta(seconds=parts.settings.quarantine_seconds)
    removable = [row.name for row in rows if quarantine.may_be_removed(row, kept_for)]
    for name in removable[:MOST_AT_ONCE]:
        log.warning("removing_unknown", container=name)
        try:
            parts.engine.remove(name)
        except EngineRefused as error:
            log.warning("unknown_not_removed", container=name, error=str(error))
