"""Passed deadlines: the sweep reads them here, and writes their desired states (law 8)."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, func, or_
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.models import Conversation, Node, Sandbox, StartTask
from shared.sandboxes.deadlines import DERIVED, refresh, write_activity
from shared.sandboxes.desired_state import new_generation
from shared.sql import locks
from shared.sql.due_checks import when_passed
from shared.sql.statements import count_written, unchanged
from shared.states import FINAL_STAGES, DeadlineAction, Desired, NodeStatus

# The columns that must not have changed since the deadline was read.
UNCHANGED = ("node_id", "generation", *DERIVED)
# Another node's worker may have to apply the deadline: `overdue` decides.
DUE = when_passed(col(Sandbox.deadline_at), col(Sandbox.deadline_at).is_not(None))


@dataclass(frozen=True)
class DueDeadline:
    """A deadline that has passed, with the row's columns as read. If a column has changed since, it is not applied."""

    sandbox_id: str
    node_id: str | None
    generation: int
    deadline_at: datetime
    deadline_does: str
    expires_at: datetime | None

    @property
    def action(self) -> DeadlineAction:
        """The action to take. A sandbox that has expired too is not paused first."""
        expired = self.expires_at is not None and self.expires_at <= now()
        return DeadlineAction.EXPIRE if expired else DeadlineAction(self.deadline_does)


def overdue(session: Session, node_id: str, limit: int = 100) -> Sequence[DueDeadline]:
    """Return the deadlines that have passed, oldest first, for a worker of that node.

    Only workers of the sandbox's own node pause and stop it, and not while that node is lost. Any worker applies a
    delete: the node may be lost, or there may be none yet. The sandbox leaves its owner's lists immediately.
    """
    # A cordoned node keeps that status while it is lost.
    is_lost = or_(col(Node.status) == NodeStatus.LOST, col(Node.detail).is_not(None))
    lost = select(Node.id).where(Node.id == Sandbox.node_id, is_lost)
    local = and_(col(Sandbox.node_id) == node_id, ~lost.exists())
    columns: list[Any] = [Sandbox.id, *(getattr(Sandbox, name) for name in UNCHANGED)]
    passed = select(*columns).where(col(Sandbox.deadline_at) <= now(), or_(_deletes(), local))
    rows: Sequence[Any] = session.exec(passed.order_by(col(Sandbox.deadline_at)).limit(limit)).all()
    return [DueDeadline(*row) for row in rows]


def count_due_deletes(session: Session, spec_id: str) -> int:
    """Count the sandboxes of a spec whose delete deadline has passed."""
    passed = (Sandbox.spec_id == spec_id, col(Sandbox.deadline_at) <= now(), _deletes())
    return session.exec(select(func.count()).select_from(Sandbox).where(*passed)).one()


def apply_deadline(session: Session, deadline: DueDeadline, *, due_at: datetime) -> bool:
    """Write the desired state of a deadline, unless the row has changed since the deadline was read.

    A sandbox with a running agent is not paused: its activity is recorded instead. A row that another transaction has
    locked is left to the next sweep.

    Returns:
        Whether the desired state was written.
    """
    action = deadline.action
    desired, reason = action.outcome
    as_read = {name: getattr(deadline, name) for name in UNCHANGED}
    guard = and_(unchanged(Sandbox, id=deadline.sandbox_id, **as_read), col(Sandbox.desired) != Desired.DELETED)
    if session.execute(locks.in_order(Sandbox, guard, skip_locked=True)).first() is None:
        return False
    where = and_(guard, ~_is_active()) if action == DeadlineAction.FREEZE else guard
    statement = new_generation(desired, where, due_at=due_at, at=now(), reason=reason)
    is_applied = bool(count_written(session, statement))
    if is_applied or write_activity(session, guard):
        change_recorder.record_change(session, refresh(session, deadline.sandbox_id))
    return is_applied


def _deletes() -> ColumnElement[bool]:
    by_deadline = col(Sandbox.deadline_does).in_((DeadlineAction.DELETE, DeadlineAction.EXPIRE))
    return or_(by_deadline, col(Sandbox.expires_at) <= now())


def _is_active() -> ColumnElement[bool]:
    """An agent is running, or a conversation is being started."""
    in_sandbox = col(Conversation.sandbox_id) == col(Sandbox.id)
    running = select(Conversation.id).where(in_sandbox, Conversation.execution_status == "running")
    starting = select(StartTask.id).where(
        col(StartTask.sandbox_id) == col(Sandbox.id), col(StartTask.stage).not_in(FINAL_STAGES)
    )
    return or_(running.exists(), starting.exists())
