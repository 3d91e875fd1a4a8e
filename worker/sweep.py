"""The sweep: publishes what the store says is unfinished, whatever became of the messages (law 1)."""

from sqlalchemy import or_
from sqlmodel import col

from shared import leases
from shared.clock import after
from shared.jobs import CheckSandbox, Job, StartSandbox
from shared.models import Sandbox
from shared.statements import given
from shared.store import change_log, followers, idempotency, placement
from worker.deadlines import meet_deadlines
from worker.parts import Parts
from worker.warm_pool import tend_pools

HERE = col(Sandbox.node_id) == given("node_id")
# What is nowhere, yet or any more, is everybody's: whoever comes first tells its conversations.
HERE_OR_NOWHERE = or_(HERE, col(Sandbox.node_id).is_(None))


def sweep(parts: Parts) -> None:
    """Place what waits for a node, hand out what this node has to do, meet deadlines, and forget what has expired."""
    parts.publisher.publish(*_place(parts), *_take_due(parts))
    meet_deadlines(parts)
    tend_pools(parts)
    _forget(parts)


def _place(parts: Parts) -> list[Job]:
    """Each in a transaction of its own: while nodes are locked, nobody else places anything."""
    with parts.database.reading() as session:
        waiting = placement.find(session)
    jobs: list[Job] = []
    for sandbox_id in waiting:
        due_at = after(parts.shared.republish_seconds)
        with parts.database.transaction() as session:
            node_id = placement.place(session, sandbox_id, parts.settings.node, due_at=due_at)
        jobs += [StartSandbox(sandbox_id, node_id)] if node_id else []
    return jobs


def _take_due(parts: Parts) -> list[Job]:
    node_id = parts.settings.node
    with parts.database.reading() as session:
        due = leases.find_due(session, Sandbox, HERE, node_id=node_id)
        waiting = followers.find_due(session, HERE_OR_NOWHERE, node_id=node_id)
    if not (due or any(waiting)):
        return []
    again_at = after(parts.shared.republish_seconds)
    with parts.database.transaction() as session:
        taken = leases.take_due(session, Sandbox, due, again_at=again_at)
        woken = followers.take_due(session, waiting, again_at=again_at)
    return [*(CheckSandbox(row_id, node_id) for row_id in taken), *woken.jobs(node_id)]


def _forget(parts: Parts) -> None:
    for table in (idempotency, change_log):
        with parts.database.reading() as session:
            expired = table.has_expired(session)
        if expired:
            with parts.database.transaction() as session:
                table.forget_expired(session)
