"""Other nodes: which of them are lost, and what becomes of their sandboxes."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime

import structlog
from sqlmodel import col

from shared.clock import after
from shared.leasing import waiters
from shared.models import Node, Sandbox
from shared.nodes import registry as node_registry
from shared.queue.jobs import Job, ResumeSandbox
from shared.sandboxes import failover
from shared.sandboxes.failover import Claimant, Lost
from shared.sql.prepared import given
from worker.context import WorkerContext

log = structlog.get_logger()

THERE = col(Sandbox.node_id) == given("node_id")


class NodeFailureDetector:
    """Counts for how long each of the other nodes has been silent while this worker was listening.

    Clocks of machines differ, and after a time without the database every node looks silent: what counts is what was
    seen here, look by look. A worker that starts anew begins to count anew; nothing but patience is lost with it.
    """

    def __init__(self, context: WorkerContext, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin to listen; `clock` gives seconds."""
        self._context = context
        self._clock = clock
        self._looked_at: float | None = None
        self._silence: dict[tuple[str, datetime], float] = {}

    def look(self) -> None:
        """Look once, and evacuate the nodes that are lost."""
        with self._context.database.reading() as session:
            found = node_registry.heartbeats(session)
        found.pop(self._context.settings.node, None)
        for lost in self._listen(found):
            fail_over(self._context, lost)

    def _listen(self, heartbeats: Mapping[str, datetime]) -> list[Lost]:
        limit, at = self._context.settings.node_lost_seconds, self._clock()
        # One long pause of our own is not the others' silence.
        passed = 0.0 if self._looked_at is None else min(at - self._looked_at, limit / 4)
        self._looked_at = at
        known = self._silence
        self._silence = {beat: known[beat] + passed if beat in known else 0.0 for beat in heartbeats.items()}
        return [Lost(*beat) for beat, seconds in self._silence.items() if seconds >= limit]


def fail_over(context: WorkerContext, lost: Lost) -> None:
    """Tell the node's sandboxes, and move those that their owners have resumed since."""
    with context.database.transaction() as session:
        before = session.get(Node, lost.node_id)
        known = before is not None and before.detail is not None
        if node_registry.lose(session, lost.node_id, lost.heartbeat_at) is None:
            return
    if not known:
        log.warning("node_lost", lost=lost.node_id)
    with context.database.reading() as session:
        ids = failover.concerned(session, lost.node_id)
    for sandbox_id in ids:
        context.publisher.publish(*_fail_over(context, lost, sandbox_id))
    context.publisher.publish(*_take_due(context, lost))


def _fail_over(context: WorkerContext, lost: Lost, sandbox_id: str) -> list[Job]:
    here, due_at = context.settings.node, after(context.shared.republish_seconds)
    claimant = Claimant(context.renewer.owner, context.renewer.seconds, due_at)
    with context.database.transaction() as session:
        done = failover.fail_over(session, lost, sandbox_id, claimant)
    if done is None:
        return []
    log.warning("evacuated", sandbox=sandbox_id, lost=lost.node_id, moved_to=done.moved_to)
    moved: list[Job] = [ResumeSandbox(sandbox_id, done.moved_to)] if done.moved_to else []
    return [*moved, *done.woken.jobs(here)]


def _take_due(context: WorkerContext, lost: Lost) -> list[Job]:
    """Its start tasks and conversations have nobody else who would look after them."""
    with context.database.reading() as session:
        due = waiters.find_due(session, THERE, node_id=lost.node_id)
    if not any(due):
        return []
    with context.database.transaction() as session:
        taken = waiters.take_due(session, due, again_at=after(context.shared.republish_seconds))
    return taken.jobs(context.settings.node)
