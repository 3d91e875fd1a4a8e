"""The sweep: enqueues the jobs of all due rows, also those whose messages were lost (law 1)."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from shared.changes import change_feed
from shared.clock import after
from shared.container_logs import kept_logs
from shared.conversations import start_tasks
from shared.db.database import StoreError
from shared.leasing import leases, waiters
from shared.models import Sandbox
from shared.nodes import placement
from shared.queue.jobs import CheckSandbox, Job, StartSandbox
from shared.retention import tombstones
from shared.sandboxes import due_deadlines
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes import status as sandbox_status
from shared.sql.due_checks import DueCheck, find_due
from shared.users import idempotency
from shared.warm_pool import pool as warm_pool
from worker.context import WorkerContext
from worker.loops.deadlines import apply_deadlines
from worker.loops.warm_pool import reconcile_pools


def sweep(context: WorkerContext) -> None:
    """Place pending sandboxes, enqueue this node's due rows, apply deadlines, and delete expired records.

    An error in one step ends no other, because the next sweep may fail in the same place. It is raised at the end, and
    of several errors rather a bug in this service than an unavailable store.
    """
    errors: list[Exception] = []
    for step in find_due(context.database.fetch, STEPS):
        try:
            step(context)
        except Exception as error:  # noqa: BLE001 - raised below
            errors.append(error)
    if errors:
        raise next((error for error in errors if not isinstance(error, StoreError)), errors[0])


def _place_waiting(context: WorkerContext) -> None:
    """Pause or place the sandboxes without a node. Any worker does that: they have no container."""
    with context.database.reading() as session:
        paused = sandbox_queries.find_unplaced_pauses(session)
        waiting = placement.find_waiting(session, context.settings.node)
    jobs = [job for sandbox_id in paused for job in _pause(context, sandbox_id)]
    jobs += [job for sandbox_id in waiting for job in _place(context, sandbox_id)]
    context.publisher.publish(*jobs)


def _pause(context: WorkerContext, sandbox_id: str) -> list[Job]:
    lease = context.renewer.owner, context.renewer.seconds
    with context.database.transaction() as session:
        if not sandbox_status.pause_unplaced(session, sandbox_id, *lease):
            return []
        woken = waiters.enqueue_waiters(session, sandbox_id, after(context.shared.republish_seconds))
    return woken.jobs(context.settings.node)


def _place(context: WorkerContext, sandbox_id: str) -> list[Job]:
    """Place a sandbox in its own transaction: while it locks the nodes, no other placement can run."""
    due_at = after(context.shared.republish_seconds)
    with context.database.transaction() as session:
        node_id = placement.place_waiting(session, sandbox_id, context.settings.node, due_at=due_at)
    return [StartSandbox(sandbox_id, node_id)] if node_id else []


def _enqueue_due(context: WorkerContext) -> None:
    node_id = context.settings.node
    with context.database.reading() as session:
        due = leases.find_due(session, Sandbox, leases.ON_NODE, node_id=node_id)
        waiting = waiters.find_due(session, node_id, without_container=True)
    if not (due or any(waiting)):
        return
    again_at = after(context.shared.republish_seconds)
    with context.database.transaction() as session:
        taken = leases.dequeue_due(session, Sandbox, due, again_at=again_at)
        woken = waiters.dequeue_due(session, waiting, again_at=again_at)
    context.publisher.publish(*(CheckSandbox(row_id, node_id) for row_id in taken), *woken.jobs(node_id))


def _delete_expired(table: Any, context: WorkerContext) -> None:
    with context.database.transaction() as session:
        table.delete_expired(session)


# The steps of a sweep in their order, and the checks whether there is anything to do.
STEPS: dict[Callable[[WorkerContext], None], Iterable[DueCheck]] = {
    _place_waiting: [placement.UNPLACED],
    _enqueue_due: leases.DUE,
    apply_deadlines: [due_deadlines.DUE],
    reconcile_pools: warm_pool.IN_USE,
    # The tables whose rows have a retention.
    **{
        partial(_delete_expired, table): [table.EXPIRED]
        for table in (idempotency, change_feed, kept_logs, start_tasks, tombstones)
    },
}
