"""Removal of stale containers: those of sandboxes that have moved to other nodes."""

from collections.abc import Set as AbstractSet
from functools import partial

import structlog

from shared.nodes import registry as node_registry
from worker.context import WorkerContext
from worker.engine.protocol import EngineError, EngineUnavailable
from worker.loops.attempts import attempt_each
from worker.sandboxes.container_spec import NAME_PREFIX, container_name

log = structlog.get_logger()


def list_names(context: WorkerContext) -> set[str]:
    """Return the names of all containers and volumes that may belong to a sandbox of this installation."""
    engine = context.engine
    found = {item.name for item in engine.list_containers(context.installation)}
    return found.union(engine.list_volumes(context.installation), engine.list_unlabelled_volumes())


def reap_stale(context: WorkerContext, listed: AbstractSet[str]) -> set[str]:
    """Remove the containers and volumes of sandboxes that moved to other nodes, as far as the engine can do that.

    Args:
        listed: the names on the engine. They are listed before the sandboxes are read: the container of a sandbox that
            moves back concurrently is not among them.

    Returns:
        The ids of the sandboxes that moved away, whether or not they had a container here.
    """
    with context.database.reading() as session:
        stale = node_registry.stale_containers(session, context.settings.node)
    found = listed & set(map(container_name, stale))
    context.unreaped.intersection_update(found)
    attempt_each(context, found, partial(_reap_one, context), "stale_container_not_reaped")
    return stale


def find_unreaped(context: WorkerContext) -> str | None:
    """Return which stale containers the engine did not remove; None: none is left."""
    names = ", ".join(sorted(context.unreaped))
    return f"its engine does not remove the containers of sandboxes that moved away: {names}" if names else None


def _reap_one(context: WorkerContext, name: str) -> None:
    """Remove a container, unless the removal by another thread, which this one has waited for, has just failed."""
    failed_before = name in context.unreaped
    with context.reaping:
        if name in context.unreaped and not failed_before:
            raise EngineUnavailable("another thread's removal has just failed")
        _reap(context, name)


def _reap(context: WorkerContext, name: str) -> None:
    """Remove a container, if its sandbox is still elsewhere."""
    with context.database.reading() as session:
        if not node_registry.is_stale(session, context.settings.node, name.removeprefix(NAME_PREFIX)):
            return
    log.warning("reaping_stale_container", container=name)
    try:
        context.engine.observe(name)  # which gives another sandbox's container that has this name its own back
        context.engine.remove(name)
    except EngineError:
        context.unreaped.add(name)
        raise
    context.unreaped.discard(name)
