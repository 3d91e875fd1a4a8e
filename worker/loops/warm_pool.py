"""Warm pools: create missing warm sandboxes, and remove outdated ones."""

from collections.abc import Collection, Mapping

import structlog

from shared.clock import after
from shared.models import Sandbox
from shared.queue.jobs import DeleteSandbox, Job
from shared.warm_pool import pool as warm_pool
from shared.warm_pool.pool import PooledSandbox
from shared.warm_pool.start import SandboxStart
from worker.context import WorkerContext
from worker.engine.protocol import ContainerSummary, EngineError, has_responded
from worker.sandboxes.container_spec import container_name

log = structlog.get_logger()


def reconcile_pools(context: WorkerContext) -> None:
    """Reconcile every pool that differs from its spec. The store lets one worker at a time reconcile a pool."""
    with context.database.reading() as session:
        spec_ids = warm_pool.pools_to_reconcile(session)
    for spec_id in spec_ids:
        with context.database.transaction() as session:
            removed = warm_pool.remove_unusable(session, spec_id, due_at=after(context.shared.republish_seconds))
        context.publisher.publish(*map(_deletion, removed))
        while (started := _start_warm_sandbox(context, spec_id)) is not None:
            context.publisher.publish(*started.jobs)


def _start_warm_sandbox(context: WorkerContext, spec_id: str) -> SandboxStart | None:
    due_at, boots = after(context.shared.republish_seconds), context.settings.warm_boot_concurrency
    with context.database.transaction() as session:
        return warm_pool.start_warm_sandbox(session, context.vault, spec_id, boots=boots, due_at=due_at)


def remove_outdated(context: WorkerContext, listed: Mapping[str, ContainerSummary]) -> None:
    """Remove this node's warm sandboxes whose image reference now names another image.

    Args:
        listed: the engine's containers by name.
    """
    with context.database.reading() as session:
        found = {warm for warm in warm_pool.on_node(session, context.settings.node) if _container(warm) in listed}
    images = _find_images(context, {warm.spec_id for warm in found})
    outdated = [warm.id for warm in found if images.get(warm.spec_id) not in (None, listed[_container(warm)].image)]
    if outdated:
        with context.database.transaction() as session:
            removed = warm_pool.retire(session, outdated, due_at=after(context.shared.republish_seconds))
        context.publisher.publish(*map(_deletion, removed))


def _find_images(context: WorkerContext, spec_ids: Collection[str]) -> dict[str, str | None]:
    """The ids of the specs' images, as far as the engine responds."""
    found: dict[str, str | None] = {}
    for spec_id in sorted(spec_ids):
        try:
            found[spec_id] = context.engine.find_image(spec_id)
        except EngineError as error:  # the rest of the resync does not depend on images
            log.warning("image_not_inspected", image=spec_id, error=str(error))
            if not has_responded(error):
                break
    return found


def _container(warm: PooledSandbox) -> str:
    return container_name(warm.id)


def _deletion(sandbox: Sandbox) -> Job:
    return DeleteSandbox(sandbox.id, sandbox.node_id)
