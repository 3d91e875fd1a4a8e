"""Deadlines that have passed: each becomes a wish, which is carried out like anybody's."""

import structlog

from shared.clock import after
from shared.deadlines import Act
from shared.jobs import DeleteSandbox, Job, PauseSandbox, StopSandbox
from shared.store import deadlines
from worker.parts import Parts

log = structlog.get_logger()

JOBS: dict[Act, type[Job]] = {
    Act.FREEZE: PauseSandbox,
    Act.STOP: StopSandbox,
    Act.DELETE: DeleteSandbox,
    Act.EXPIRE: DeleteSandbox,
}


def meet_deadlines(parts: Parts) -> None:
    """Wish what deadlines say. Each in a transaction of its own: nobody has to wait for two sandboxes at once."""
    with parts.database.reading() as session:
        passed = deadlines.overdue(session, parts.settings.node)
    for seen in passed:
        with parts.database.transaction() as session:
            wished = deadlines.meet(session, seen, due_at=after(parts.shared.republish_seconds))
        if wished:
            log.info("deadline", sandbox=seen.sandbox_id, does=seen.does.value)
            parts.publisher.publish(JOBS[seen.does](seen.sandbox_id, seen.node_id))
