"""A sandbox that never ran, and that this engine refuses: another node's engine may take it."""

import structlog

from shared.clock import now
from shared.errors import LeaseLost
from shared.models import Sandbox
from shared.sandboxes import rescheduling
from shared.states import Desired
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState, EngineRefused, EngineUnavailable
from worker.sandboxes.container_spec import container_name

log = structlog.get_logger()


def reschedule(context: WorkerContext, sandbox: Sandbox, refusal: str) -> bool:
    """Let another node try, under the lease that the caller holds; its sweep finds the sandbox there.

    Returns:
        Whether the sandbox is another node's now.

    Raises:
        LeaseLost: another worker owns the sandbox; nothing was touched.
    """
    if not _is_new(sandbox):
        return False
    with context.database.reading() as session:
        row = session.get_one(Sandbox, sandbox.id)
        if row.fence != sandbox.fence:  # what is there by now is not ours to remove
            raise LeaseLost(f"sandbox {sandbox.id}")
        if not rescheduling.can_be_handed_on(session, sandbox):
            return False
    if not _is_removed(context, container_name(sandbox.id)):
        return False
    with context.database.transaction() as session:
        node_id = rescheduling.hand_on(session, sandbox, refusal, due_at=now())
    if node_id is not None:
        log.warning("handed_on", sandbox=sandbox.id, refused_by=sandbox.node_id, to=node_id, why=refusal)
    return node_id is not None


def _is_new(sandbox: Sandbox) -> bool:
    """Nobody has worked in it: there are no files to lose."""
    unanswered = sandbox.generation != sandbox.observed_generation
    return sandbox.ready_at is None and sandbox.desired == Desired.RUNNING and unanswered


def _is_removed(context: WorkerContext, name: str) -> bool:
    try:
        context.engine.remove(name)
    except (EngineRefused, EngineUnavailable):
        return False
    found = context.engine.observe(name)
    return found.state == ContainerState.ABSENT and not found.leftovers
