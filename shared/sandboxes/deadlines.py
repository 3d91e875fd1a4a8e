"""Deadlines in the store: the columns that the sweep reads, and the desired states that it writes (law 8).

`deadline_at` and `deadline_does` are derived from other columns. Code that changes one of these calls `refresh` in the
same transaction, so that no deadline is missed and none outlives its cause.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ColumnElement, and_, func, or_, update
from sqlalchemy import select as sql_select
from sqlalchemy.orm.attributes import set_committed_value
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.leasing.leases import FARTHEST
from shared.models import Conversation, Node, Sandbox, SandboxSpec, StartTask
from shared.sandboxes import deadline_policy
from shared.sandboxes.deadline_policy import FIELDS, Durations, Situation
from shared.sandboxes.desired_state import new_generation
from shared.sql import locks
from shared.sql.statements import bind, bind_values, count_written, guarded_update, send, unchanged
from shared.states import FINAL_STAGES, DeadlineAction, Desired, NodeStatus

# How stale `last_active_at` may be: every batch of events is activity.
LAST_ACTIVITY_RESOLUTION = timedelta(seconds=10)
# A tenth of the idle time, for a sandbox that is paused after seconds.
LAST_ACTIVITY_FRACTION = 10
# Derived from the other columns and from the spec's.
DERIVED = ("deadline_at", "deadline_does", "expires_at")
# The columns that must not have changed since the deadline was read.
UNCHANGED = ("node_id", "generation", *DERIVED)


class HasActivity(Protocol):
    """The columns that say whether the recorded activity of a sandbox is stale."""

    @property
    def last_active_at(self) -> datetime:
        """When activity was last recorded."""

    @property
    def deadline_at(self) -> datetime | None:
        """When the next deadline passes."""

    @property
    def deadline_does(self) -> str | None:
        """The action of the next deadline."""


class Written(NamedTuple):
    """The columns of a written row that its deadlines and its change entry depend on."""

    id: str
    owner_id: str | None
    spec_id: str
    desired: str
    generation: int
    status: str
    observed_generation: int
    pause_kind: str | None
    settled_at: datetime
    freeze_after_seconds: int | None
    stop_after_seconds: int | None
    delete_after_seconds: int | None
    max_age_seconds: int | None
    last_active_at: datetime
    expires_at: datetime | None
    deadline_at: datetime | None
    deadline_does: str | None
    due_at: datetime | None
    created_at: datetime


@dataclass(frozen=True)
class DueDeadline:
    """A deadline that has passed, with the columns it was read with. A change since then wins."""

    sandbox_id: str
    node_id: str | None
    generation: int
    deadline_at: datetime
    deadline_does: str
    expires_at: datetime | None

    @property
    def does(self) -> DeadlineAction:
        """The action to take. A sandbox that has expired too is not paused first."""
        expired = self.expires_at is not None and self.expires_at <= now()
        return DeadlineAction.EXPIRE if expired else DeadlineAction(self.deadline_does)


# --- derived columns ------------------------------------------------------------------------------------------------


def refresh(session: Session, sandbox_id: str) -> Sandbox:
    """Recompute the deadline columns of a row that the caller has written in this transaction.

    Returns:
        The current row.
    """
    session.flush()
    row = session.scalars(FIND, bind_values(sandbox_id=sandbox_id)).one()
    for name, value in recompute(session, row).items():
        set_committed_value(row, name, value)
    return row


def set_own(session: Session, sandbox: Sandbox, own_deadlines: Mapping[str, int | None]) -> None:
    """Change deadlines of a sandbox that the caller has locked.

    Deadlines that are not named stay. The change counts as activity.
    """
    for name, seconds in own_deadlines.items():
        setattr(sandbox, name, seconds)
    sandbox.last_active_at = sandbox.updated_at = now()
    session.flush()
    change_recorder.record_change(session, refresh(session, sandbox.id))


def recompute(session: Session, row: Written | Sandbox) -> dict[str, Any]:
    """Recompute the deadline columns from a row as its UPDATE returned it.

    The spec is read after that UPDATE: a change of the spec writes the row too, before this one or after its commit.

    Returns:
        The deadline columns.
    """
    [spec] = send(session, DURATIONS, bind_values(spec_id=row.spec_id))
    durations = in_force(row, Durations(*spec))
    deadline = deadline_policy.next_deadline(_situation(row), durations)
    columns: dict[str, Any] = dict.fromkeys(DERIVED) | {"expires_at": deadline_policy.expiry(row.created_at, durations)}
    if deadline is not None:
        columns |= {"deadline_at": deadline.at, "deadline_does": deadline.does}
    if any(getattr(row, name) != value for name, value in columns.items()):
        send(session, UPDATE_DERIVED, bind_values(sandbox_id=row.id, **columns))
    return columns


def in_force(sandbox: Written | Sandbox, spec: Any) -> Durations:
    """Return the sandbox's own durations, and its spec's where it has none. A warm sandbox has no deadlines.

    Args:
        spec: any object with the columns named in `shared.sandboxes.deadline_policy.FIELDS`.
    """
    if sandbox.owner_id is None:
        return Durations()
    own, default = ({name: getattr(row, name) for name in FIELDS} for row in (sandbox, spec))
    return deadline_policy.combine(own, default)


def in_force_for(session: Session, rows: Sequence[Sandbox]) -> dict[str, Durations]:
    """Return the durations in force for each of the sandboxes, by id."""
    ids = {row.spec_id for row in rows}
    found = session.exec(select(SandboxSpec).where(col(SandboxSpec.id).in_(ids))).all() if ids else ()
    specs = {spec.id: spec for spec in found}
    return {row.id: in_force(row, specs[row.spec_id]) for row in rows}


def activity_resolution(sandbox: HasActivity) -> timedelta:
    """Return how stale the sandbox's `last_active_at` may be."""
    if sandbox.deadline_at is not None and sandbox.deadline_does == DeadlineAction.FREEZE:
        return min(LAST_ACTIVITY_RESOLUTION, (sandbox.deadline_at - sandbox.last_active_at) / LAST_ACTIVITY_FRACTION)
    return LAST_ACTIVITY_RESOLUTION


def is_activity_stale(sandbox: HasActivity) -> bool:
    """Whether the sandbox's recorded activity is stale."""
    since = now() - sandbox.last_active_at
    return (
        since >= activity_resolution(sandbox) or since < -FARTHEST
    )  # a time from a wrong clock must not block new ones


def record_activity(session: Session, sandbox_id: str) -> None:
    """Record activity of the sandbox. The caller must not hold locks on its conversations or start tasks."""
    exists = (col(Sandbox.id) == sandbox_id, col(Sandbox.desired) != Desired.DELETED)
    if _record_activity(session, and_(*exists)):
        refresh(session, sandbox_id)


# --- the sweep ------------------------------------------------------------------------------------------------------


def overdue(session: Session, node_id: str, limit: int = 100) -> Sequence[DueDeadline]:
    """Return the deadlines that have passed, oldest first, for a worker of that node.

    Pauses and stops are left to the sandbox's own node, unless that is lost. A delete is applied by any worker: the
    node may be lost, or there may be none yet. The owner stops listing the sandbox immediately.
    """
    lost = select(Node.id).where(Node.id == Sandbox.node_id, Node.status == NodeStatus.LOST)
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

    A sandbox with an agent at work is not paused: its activity is recorded instead. A row that another transaction has
    locked is left to the next sweep.

    Returns:
        Whether the desired state was written.
    """
    does = deadline.does
    desired, reason = does.outcome
    as_read = {name: getattr(deadline, name) for name in UNCHANGED}
    guard = and_(unchanged(Sandbox, id=deadline.sandbox_id, **as_read), col(Sandbox.desired) != Desired.DELETED)
    if session.execute(locks.in_order(Sandbox, guard, skip_locked=True)).first() is None:
        return False
    where = and_(guard, ~_is_active()) if does == DeadlineAction.FREEZE else guard
    statement = new_generation(desired, where, due_at=due_at, at=now(), reason=reason)
    is_applied = bool(count_written(session, statement))
    if is_applied or _record_activity(session, guard):
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


def _situation(row: Written | Sandbox) -> Situation:
    return Situation(
        desired=row.desired,
        status=row.status,
        pause_kind=row.pause_kind,
        is_observed=row.generation == row.observed_generation,
        created_at=row.created_at,
        settled_at=row.settled_at,
        last_active_at=row.last_active_at,
    )


def _record_activity(session: Session, where: ColumnElement[bool]) -> bool:
    return bool(count_written(session, guarded_update(Sandbox, where, {"last_active_at": now()})))


# --- prepared statements --------------------------------------------------------------------------------------------

THIS = col(Sandbox.id) == bind("sandbox_id")
FIND = select(Sandbox).where(THIS).execution_options(populate_existing=True)
DURATIONS = sql_select(*(getattr(SandboxSpec, name) for name in FIELDS)).where(col(SandboxSpec.id) == bind("spec_id"))
UPDATE_DERIVED = update(Sandbox).where(THIS).values({name: bind(name) for name in DERIVED})
