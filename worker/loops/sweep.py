"""The sweep: enqueues the jobs of all due rows, also those whose messages were lost (law 1)."""

from shared.changes import change_feed
from shared.clock import after, now
from shared.container_logs import kept_logs
from shared.conversations import start_tasks
from shared.leasing import leases, waiters
from shared.models import Sandbox
from shared.nodes import placement
from shared.queue.jobs import CheckSandbox, Job, StartSandbox
from shared.retention import tombstones
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes import status as sandbox_status
from shared.users import idempotency
from worker.context import WorkerContext
from worker.loops.deadlines import apply_deadlines
from worker.loops.warm_pool import reconcile_pools

# The tables whose rows have a retention.
RETAINED = (idempotency, change_feed, kept_logs, start_tasks, tombstones)


def sweep(context: WorkerContext) -> None:
    """Place pending sandboxes, enqueue this node's due rows, apply deadlines, and delete expired records."""
    _pause_unplaced(context)
    context.publisher.publish(*_place(context), *_take_due(context))
    apply_deadlines(context)
    reconcile_pools(context)
    _delete_expired(context)


def _pause_unplaced(context: WorkerContext) -> None:
    """Pause sandboxes that no node has had room for. Any worker does that: they have no container."""
    with context.database.reading() as session:
        paused = sandbox_queries.find_unplaced_pauses(session)
    for sandbox_id in paused:
        with context.database.transaction() as session:
            lease = context.renewer.owner, context.renewer.seconds
            if sandbox_status.pause_unplaced(session, sandbox_id, *lease):
                waiters.enqueue_waiters(session, sandbox_id, now())  # the same sweep enqueues them


def _place(context: WorkerContext) -> list[Job]:
    """Place each sandbox in its own transaction: while it locks the nodes, no other placement can run."""
    with context.database.reading() as session:
        waiting = placement.find_waiting(session, context.settings.node)
    jobs: list[Job] = []
    for sandbox_id in waiting:
        due_at = after(context.shared.republish_seconds)
        with context.database.transaction() as session:
            node_id = placement.place_waiting(session, sandbox_id, context.settings.node, due_at=due_at)
        jobs += [StartSandbox(sandbox_id, node_id)] if node_id else []
    return jobs


def _take_due(context: WorkerContext) -> list[Job]:
    node_id = context.settings.node
    with context.database.reading() as session:
        due = leases.find_due(session, Sandbox, leases.ON_NODE, node_id=node_id)
        waiting = waiters.find_due(session, node_id, without_container=True)
    if not (due or any(waiting)):
        return []
    again_at = after(context.shared.republish_seconds)
    with context.database.transaction() as session:
        taken = leases.dequeue_due(session, Sandbox, due, again_at=again_at)
        woken = waiters.dequeue_due(session, waiting, again_at=again_at)
    return [*(CheckSandbox(row_id, node_id) for row_id in taken), *woken.jobs(node_id)]


def _delete_expired(context: WorkerContext) -> None:
    with context.database.reading() as session:
        expired = [table for table in RETAINED if table.has_expired(session)]
    for table in expired:
        with context.database.transaction() as session:
            table.delete_expired(session)
