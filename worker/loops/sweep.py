"""The sweep: publishes what the store says is unfinished, whatever became of the messages (law 1)."""

from sqlalchemy import or_
from sqlmodel import col

from shared.changes import change_feed
from shared.clock import after
from shared.leasing import leases, waiters
from shared.models import Sandbox
from shared.nodes import pending_placement
from shared.queue.jobs import CheckSandbox, Job, StartSandbox
from shared.sql.prepared import given
from shared.users import idempotency
from worker.context import WorkerContext
from worker.loops.deadlines import meet_deadlines
from worker.loops.warm_pool import reconcile_pools

HERE = col(Sandbox.node_id) == given("node_id")
# What is nowhere, yet or any more, is everybody's: whoever comes first tells its conversations.
HERE_OR_NOWHERE = or_(HERE, col(Sandbox.node_id).is_(None))


def sweep(context: WorkerContext) -> None:
    """Place what waits for a node, hand out what this node has to do, meet deadlines, and forget what has expired."""
    context.publisher.publish(*_place(context), *_take_due(context))
    meet_deadlines(context)
    reconcile_pools(context)
    _forget(context)


def _place(context: WorkerContext) -> list[Job]:
    """Each in a transaction of its own: while nodes are locked, nobody else places anything."""
    with context.database.reading() as session:
        waiting = pending_placement.find(session)
    jobs: list[Job] = []
    for sandbox_id in waiting:
        due_at = after(context.shared.republish_seconds)
        with context.database.transaction() as session:
            node_id = pending_placement.place(session, sandbox_id, context.settings.node, due_at=due_at)
        jobs += [StartSandbox(sandbox_id, node_id)] if node_id else []
    return jobs


def _take_due(context: WorkerContext) -> list[Job]:
    node_id = context.settings.node
    with context.database.reading() as session:
        due = leases.find_due(session, Sandbox, HERE, node_id=node_id)
        waiting = waiters.find_due(session, HERE_OR_NOWHERE, node_id=node_id)
    if not (due or any(waiting)):
        return []
    again_at = after(context.shared.republish_seconds)
    with context.database.transaction() as session:
        taken = leases.dequeue_due(session, Sandbox, due, again_at=again_at)
        woken = waiters.take_due(session, waiting, again_at=again_at)
    return [*(CheckSandbox(row_id, node_id) for row_id in taken), *woken.jobs(node_id)]


def _forget(context: WorkerContext) -> None:
    for table in (idempotency, change_feed):
        with context.database.reading() as session:
            expired = table.has_expired(session)
        if expired:
            with context.database.transaction() as session:
                table.forget_expired(session)
