"""Overdue deadlines: each one sets a desired state, which workers reconcile like a user's."""

import structlog

from shared.clock import after
from shared.queue.jobs import DeleteSandbox, Job, PauseSandbox, StopSandbox
from shared.sandboxes import due_deadlines
from shared.states import DeadlineAction
from worker.context import WorkerContext

log = structlog.get_logger()

JOBS: dict[DeadlineAction, type[Job]] = {
    DeadlineAction.FREEZE: PauseSandbox,
    DeadlineAction.STOP: StopSandbox,
    DeadlineAction.DELETE: DeleteSandbox,
    DeadlineAction.EXPIRE: DeleteSandbox,
}


def apply_deadlines(context: WorkerContext) -> None:
    """Apply every overdue deadline, each in its own transaction: no transaction locks two sandboxes."""
    with context.database.reading() as session:
        overdue = due_deadlines.overdue(session, context.settings.node)
    for deadline in overdue:
        with context.database.transaction() as session:
            applied = due_deadlines.apply_deadline(session, deadline, due_at=after(context.shared.republish_seconds))
        if applied:
            log.info("deadline", sandbox=deadline.sandbox_id, does=deadline.action.value)
            context.publisher.publish(JOBS[deadline.action](deadline.sandbox_id, deadline.node_id))
