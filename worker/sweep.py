"""The sweep: publishes what the store says is unfinished, whatever became of the messages (law 1)."""

from sqlalchemy import or_
from sqlmodel import col, select

from shared import leases
from shared.clock import after
from shared.jobs import CheckSandbox, Job, StartSandbox
from shared.models import Conversation, Sandbox, StartTask
from shared.store import change_log, idempotency, sandboxes
from shared.store.followers import Followers
from worker.deadlines import meet_deadlines
from worker.parts import Parts
from worker.warm_pool import tend_pools


def sweep(parts: Parts) -> None:
    """Place what waits for a node, hand out what this node has to do, meet deadlines, and forget what has expired."""
    parts.publisher.publish(*_place(parts), *_take_due(parts))
    meet_deadlines(parts)
    tend_pools(parts)
    _forget(parts)


def _place(parts: Parts) -> list[Job]:
    with parts.database.reading() as session:
        if session.exec(select(Sandbox.id).where(*sandboxes.waiting_for_node()).limit(1)).first() is None:
            return []
    here, due_at = parts.settings.node, after(parts.shared.republish_seconds)
    with parts.database.transaction() as session:
        placed = sandboxes.place_waiting(session, here, due_at=due_at)
    return [StartSandbox(sandbox_id, node_id) for sandbox_id, node_id in placed]


def _take_due(parts: Parts) -> list[Job]:
    node_id = parts.settings.node
    # What is nowhere, yet or any more, is everybody's: whoever comes first tells its conversations.
    here = select(Sandbox.id).where(or_(col(Sandbox.node_id) == node_id, col(Sandbox.node_id).is_(None)))
    again_at = after(parts.shared.republish_seconds)
    with parts.database.transaction() as session:
        due = leases.take_due(session, Sandbox, col(Sandbox.node_id) == node_id, again_at=again_at)
        starts = leases.take_due(session, StartTask, col(StartTask.sandbox_id).in_(here), again_at=again_at)
        talks = leases.take_due(session, Conversation, col(Conversation.sandbox_id).in_(here), again_at=again_at)
    return [*(CheckSandbox(row_id, node_id) for row_id in due), *Followers(starts, talks).jobs(node_id)]


def _forget(parts: Parts) -> None:
    for table in (idempotency, change_log):
        with parts.database.reading() as session:
            expired = table.has_expired(session)
        if expired:
            with parts.database.transaction() as session:
                table.forget_expired(session)
