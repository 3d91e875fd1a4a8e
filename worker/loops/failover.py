"""Failure detection of other nodes, and failover of their sandboxes."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime

import structlog

from shared.clock import after, now
from shared.conversations import queries as conversation_queries
from shared.leasing import leases, waiters
from shared.models import Node, StartTask
from shared.nodes import registry as node_registry
from shared.queue.jobs import Job, ResumeSandbox
from shared.sandboxes import failover
from shared.sandboxes.failover import LeaseRequest, LostNode
from shared.states import NodeStatus
from worker.context import WorkerContext

log = structlog.get_logger()


class NodeFailureDetector:
    """Counter of the seconds for which each other node sent no heartbeat while this worker was checking.

    Clocks of machines differ, and after a database outage every heartbeat is old. The detector therefore compares
    heartbeats with its own earlier checks, not with the time. A restarted worker counts from zero, which only delays
    the detection. While this worker's heartbeats can't be stored, nothing is counted: those of others can't either.
    """

    def __init__(self, context: WorkerContext, clock: Callable[[], float] = time.monotonic) -> None:
        self._context = context
        self._clock = clock
        self._checked_at: float | None = None
        # When a heartbeat of this worker was last stored, whether or not its engine responded.
        self._stored_at = clock()
        self._silence: dict[tuple[str, datetime], float] = {}

    def record_stored(self) -> None:
        """Record that a heartbeat of this worker was stored just now."""
        self._stored_at = self._clock()

    def check(self) -> None:
        """Read the heartbeats of all nodes, and fail over those that are lost."""
        found = node_registry.heartbeats(self._context.database.fetch)
        found.pop(self._context.settings.node, None)
        for lost in self._find_lost(found):
            fail_over(self._context, lost)

    def _find_lost(self, heartbeats: Mapping[str, datetime]) -> list[LostNode]:
        limit, at = self._context.settings.node_lost_seconds, self._clock()
        # A long pause of this worker does not count as silence of the other nodes.
        passed = 0.0 if self._checked_at is None else min(at - self._checked_at, limit / 4)
        if at - self._stored_at > max(limit / 3, 1.25 * self._context.settings.heartbeat_seconds):
            passed = 0.0
        self._checked_at = at
        known = self._silence
        self._silence = {last: known[last] + passed if last in known else 0.0 for last in heartbeats.items()}
        return [LostNode(*last) for last, seconds in self._silence.items() if seconds >= limit]


def fail_over(context: WorkerContext, lost: LostNode) -> None:
    """Mark the node and its sandboxes lost, and move the sandboxes that their owners have resumed since."""
    if not _mark_lost(context, lost):
        return
    with context.database.reading() as session:
        ids = failover.find_actionable(session, lost.node_id)
    for sandbox_id in ids:
        context.publisher.publish(*_fail_over(context, lost, sandbox_id))
    context.publisher.publish(*_take_due(context, lost))


def _mark_lost(context: WorkerContext, lost: LostNode) -> bool:
    """Mark the node lost, and return whether it is. If it is marked already, no worker of the cluster locks its row."""
    with context.database.reading() as session:
        before = session.get(Node, lost.node_id)
    if before is None or before.heartbeat_at != lost.heartbeat_at:
        return False
    if before.detail is not None and before.status != NodeStatus.READY:
        return True
    with context.database.transaction() as session:
        problem = node_registry.mark_lost(session, lost.node_id, lost.heartbeat_at)
    if problem is not None and before.detail is None:
        log.warning("node_lost", lost=lost.node_id)
    return problem is not None


def _fail_over(context: WorkerContext, lost: LostNode, sandbox_id: str) -> list[Job]:
    node_id, due_at = context.settings.node, after(context.shared.republish_seconds)
    lease = LeaseRequest(context.renewer.owner, context.renewer.seconds, due_at)
    with context.database.transaction() as session:
        done = failover.fail_over(session, lost, sandbox_id, lease)
        if done is not None and done.moved_to is not None:
            conversation_queries.end_lost_runs(session, sandbox_id)
    if done is None:
        return []
    log.warning("failed_over", sandbox=sandbox_id, lost=lost.node_id, moved_to=done.moved_to)
    moved: list[Job] = [ResumeSandbox(sandbox_id, done.moved_to)] if done.moved_to else []
    return [*moved, *done.woken.jobs(node_id)]


def _take_due(context: WorkerContext, lost: LostNode) -> list[Job]:
    """Take over the node's due start tasks and conversations, which no worker of that node runs now."""
    _end_starts(context, lost)
    with context.database.reading() as session:
        due = waiters.find_due(session, lost.node_id)
    if not any(due):
        return []
    with context.database.transaction() as session:
        taken = waiters.dequeue_due(session, due, again_at=after(context.shared.republish_seconds))
    return taken.jobs(context.settings.node)


def _end_starts(context: WorkerContext, lost: LostNode) -> None:
    """Mark start tasks due whose sandboxes the node deletes once it is back: these tasks fail now."""
    with context.database.reading() as session:
        waiting = waiters.find_starts_of_deleted(session, lost.node_id)
    if waiting:
        with context.database.transaction() as session:
            for task_id in waiting:
                leases.mark_due(session, StartTask, task_id, now())
