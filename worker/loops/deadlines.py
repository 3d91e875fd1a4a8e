"""Deadlines that have passed: each becomes a wish, which is carried out like anybody's."""

import structlog

from shared.clock import after
from shared.queue.jobs import DeleteSandbox, Job, PauseSandbox, StopSandbox
from shared.sandboxes import deadlines
from shared.states import DeadlineAction
from worker.context import WorkerContext

log = structlog.get_logger()

JOBS: dict[DeadlineAction, type[Job]] = {
    DeadlineAction.FREEZE: PauseSandbox,
    DeadlineAction.STOP: StopSandbox,
    DeadlineAction.DELETE: DeleteSandbox,
    DeadlineAction.EXPIRE: DeleteSandbox,
}


def meet_deadlines(context: WorkerContext) -> None:
    """Wish what deadlines say. Each in a transaction of its own: nobody has to wait for two sandboxes at once."""
    with context.database.reading() as session:
        passed = deadlines.overdue(session, context.settings.node)
    for seen in passed:
        with context.database.transaction() as session:
            wished = deadlines.apply_deadline(session, seen, due_at=after(context.shared.republish_seconds))
        if wished:
            log.info("deadline", sandbox=seen.sandbox_id, does=seen.does.value)
            context.publisher.publish(JOBS[seen.does](seen.sandbox_id, seen.node_id))
