"""Quarantine of containers without a row: paused, kept for a while, and removed a few at a time."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta

import structlog

from shared.db.database import StoreConflict
from shared.models import UnknownContainer
from shared.sandboxes import quarantine
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState, ContainerSummary
from worker.loops.attempts import attempt_each

log = structlog.get_logger()

# Removals of one resync, so that it does not delay the next one.
MAX_REMOVALS = 10


def quarantine_unknown(context: WorkerContext, unknown: Mapping[str, ContainerSummary | None]) -> None:
    """Put new unknown containers into quarantine, and remove those whose quarantine is over.

    Args:
        unknown: the containers that no row explains, by name; None if there is only a volume.
    """
    node_id = context.settings.node
    pause_running(context, unknown.values())
    with context.database.reading() as session:
        known = quarantine.find(session, node_id)
    names = {row.name for row in known}
    if unknown.keys() != names:
        known = _keep(context, unknown.keys())
        for name in sorted({row.name for row in known} - names):
            log.error("unknown_container", container=name, node=node_id)
    _remove(context, known)


def pause_running(context: WorkerContext, found: Iterable[ContainerSummary | None]) -> None:
    """Pause those of these containers that run. No row of this node explains them, so no user can stop their agents.

    A paused container loses nothing if its row returns.
    """

    def pause(name: str) -> None:
        log.warning("pausing_container_without_row", container=name, node=context.settings.node)
        context.engine.pause(name)

    names = [item.name for item in found if item is not None and item.state == ContainerState.RUNNING]
    attempt_each(context, names, pause, "unknown_not_paused")


def _keep(context: WorkerContext, names: Collection[str]) -> Sequence[UnknownContainer]:
    try:
        with context.database.transaction() as session:
            quarantine.keep(session, context.settings.node, names)
            return quarantine.find(session, context.settings.node)
    except StoreConflict:
        return ()  # another worker of the node wrote the rows first: the next resync reads them


def _remove(context: WorkerContext, rows: Iterable[UnknownContainer]) -> None:
    def remove(name: str) -> None:
        log.warning("removing_unknown", container=name)
        context.engine.remove(name)

    kept_for = timedelta(seconds=context.settings.quarantine_seconds)
    removable = [row.name for row in rows if quarantine.may_be_removed(row, kept_for)]
    attempt_each(context, removable, remove, "unknown_not_removed", limit=MAX_REMOVALS)
