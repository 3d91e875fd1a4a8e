"""Removal of stale containers: those of sandboxes that have moved to other nodes."""

from collections.abc import Collection

import structlog

from shared.nodes import registry as node_registry
from worker.context import WorkerContext
from worker.engine.protocol import EngineError, has_responded
from worker.sandboxes.container_spec import container_name

log = structlog.get_logger()


def list_names(context: WorkerContext) -> set[str]:
    """Return the names of all containers and volumes that may belong to a sandbox of this installation."""
    engine = context.engine
    found = {item.name for item in engine.list_containers(context.installation)}
    return found.union(engine.list_volumes(context.installation), engine.list_unlabelled_volumes())


def reap_stale(context: WorkerContext, listed: Collection[str]) -> set[str]:
    """Remove the containers and volumes of sandboxes that moved to other nodes, as far as the engine can do that.

    Args:
        listed: the names on the engine. They are listed before the sandboxes are read: the container of a sandbox that
            moves back meanwhile is not among them.

    Returns:
        The ids of the sandboxes that moved away, whether or not they had a container here.
    """
    with context.database.reading() as session:
        stale = node_registry.stale_containers(session, context.settings.node)
    found = {sandbox_id for sandbox_id in stale if container_name(sandbox_id) in listed}
    context.unreaped.intersection_update(found)
    # Those whose removal failed before come last: a removal without a response ends this run.
    for sandbox_id in sorted(found, key=lambda found_id: (found_id in context.unreaped, found_id)):
        if not _reap_alone(context, sandbox_id):
            break
    return stale


def find_unreaped(context: WorkerContext) -> str | None:
    """Return which stale containers the engine did not remove; None: none is left."""
    names = ", ".join(sorted(map(container_name, context.unreaped)))
    return f"its engine does not remove the containers of sandboxes that moved away: {names}" if names else None


def _reap_alone(context: WorkerContext, sandbox_id: str) -> bool:
    """Remove a container, unless the removal by another thread, which this one has waited for, has just failed."""
    failed_before = sandbox_id in context.unreaped
    with context.reaping:
        return (sandbox_id not in context.unreaped or failed_before) and _reap(context, sandbox_id)


def _reap(context: WorkerContext, sandbox_id: str) -> bool:
    """Remove a container, if its sandbox is still elsewhere. Returns whether the engine has responded."""
    with context.database.reading() as session:
        if not node_registry.is_stale(session, context.settings.node, sandbox_id):
            return True
    log.warning("reaping_stale_container", container=container_name(sandbox_id))
    try:
        context.engine.remove(container_name(sandbox_id))
    except EngineError as error:
        log.warning("stale_container_not_reaped", sandbox=sandbox_id, error=str(error))
        context.unreaped.add(sandbox_id)
        return has_responded(error)
    context.unreaped.discard(sandbox_id)
    return True
