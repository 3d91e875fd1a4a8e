"""Rescheduling of a sandbox that never ran, and that this node's engine rejects: another node may start it."""

import structlog

from shared.clock import now
from shared.errors import LeaseLost
from shared.models import Sandbox
from shared.sandboxes import rescheduling
from shared.states import Desired
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState, EngineRefused, EngineUnavailable
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.status_writer import REMOVE_SECONDS

log = structlog.get_logger()


def reschedule(context: WorkerContext, sandbox: Sandbox, error: str) -> bool:
    """Reschedule the sandbox to another node, under the lease that the caller holds; that node's sweep finds it.

    Returns:
        Whether the sandbox is on another node now.

    Raises:
        LeaseLost: another worker owns the sandbox; nothing was touched.
    """
    if not _is_new(sandbox):
        return False
    with context.database.reading() as session:
        row = session.get_one(Sandbox, sandbox.id)
        if row.fence != sandbox.fence:  # the container may be the next worker's
            raise LeaseLost(f"sandbox {sandbox.id}")
        if not rescheduling.can_be_rescheduled(session, sandbox):
            return False
    context.renewer.mark_progress(Sandbox, sandbox, REMOVE_SECONDS)
    if not _is_removed(context, container_name(sandbox.id)):
        return False
    with context.database.transaction() as session:
        node_id = rescheduling.reschedule(session, sandbox, error, due_at=now())
    if node_id is not None:
        log.warning("rescheduled", sandbox=sandbox.id, refused_by=sandbox.node_id, to=node_id, why=error)
    return node_id is not None


def _is_new(sandbox: Sandbox) -> bool:
    """Whether the sandbox was never used: it has no files to lose."""
    is_due = sandbox.generation != sandbox.observed_generation
    return sandbox.ready_at is None and sandbox.desired == Desired.RUNNING and is_due


def _is_removed(context: WorkerContext, name: str) -> bool:
    try:
        context.engine.remove(name)
    except (EngineRefused, EngineUnavailable):
        return False
    found = context.engine.observe(name)
    return found.state == ContainerState.ABSENT and not found.has_volume
