"""The deadlines of sandboxes: what they are, and the columns that the sweep reads (law 8, decision 17).

An idle sandbox is paused (memory kept), then stopped (files kept), then deleted. Each of these counts from the one
before it, or from the last activity since. A sandbox also expires at a certain age, even while it is active.

`deadline_at` and `deadline_does` are derived from other columns. Code that changes one of these calls `refresh` in the
same transaction, so that no deadline is missed and none outlives its cause.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ColumnElement, and_, case, literal, update
from sqlalchemy import select as sql_select
from sqlalchemy.orm.attributes import set_committed_value
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.leasing.leases import FARTHEST
from shared.models import Sandbox, SandboxSpec
from shared.sql.clock_steps import is_ahead
from shared.sql.statements import bind, bind_values, count_written, guarded_update, send
from shared.states import DeadlineAction, Desired, PauseKind, Status

FIELDS = ("freeze_after_seconds", "stop_after_seconds", "delete_after_seconds", "max_age_seconds")
# The value that means never in a sandbox's own columns, where NULL means the spec's value.
NEVER = 0
# How stale `last_active_at` may be, because every batch of events is activity.
LAST_ACTIVITY_RESOLUTION = timedelta(seconds=10)
# For a sandbox that is frozen after seconds, `last_active_at` may be stale by a tenth of that time.
LAST_ACTIVITY_FRACTION = 10
# Derived from the other columns and from the spec's.
DERIVED = ("deadline_at", "deadline_does", "expires_at")


@dataclass(frozen=True)
class Durations:
    """The deadlines in force for one sandbox, in seconds. None means never."""

    freeze_after_seconds: int | None = None
    stop_after_seconds: int | None = None
    delete_after_seconds: int | None = None
    max_age_seconds: int | None = None


@dataclass(frozen=True)
class Deadline:
    """The next action that the sweep takes on a sandbox without activity."""

    at: datetime
    action: DeadlineAction


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


class UpdatedSandbox(NamedTuple):
    """The columns of a written row that its deadlines and its change entry depend on."""

    id: str
    owner_id: str | None
    spec_id: str
    desired: str
    generation: int
    status: str
    observed_generation: int
    pause_kind: str | None
    status_changed_at: datetime
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


# --- the policy: pure functions, no store, no clock -----------------------------------------------------------------


def combine(own: Mapping[str, int | None], spec: Mapping[str, int | None]) -> Durations:
    """Return the deadlines in force: the sandbox's own where it has one, else its spec's."""
    return Durations(**{name: (spec[name] if own[name] is None else own[name]) or None for name in FIELDS})


def expiry(created_at: datetime, durations: Durations) -> datetime | None:
    """Return when the sandbox is deleted even if it is active. None means never."""
    return _after(created_at, durations.max_age_seconds)


def next_deadline(row: UpdatedSandbox | Sandbox, durations: Durations) -> Deadline | None:
    """Return the earliest deadline, or None if none applies in the row's state."""
    deleted = (Status.DELETING, Status.DELETED)
    if row.desired == Desired.DELETED or row.status in deleted:
        return None
    ends = expiry(row.created_at, durations)
    found = [_idle(row, durations), Deadline(ends, DeadlineAction.EXPIRE) if ends else None]
    return min((deadline for deadline in found if deadline), key=lambda deadline: deadline.at, default=None)


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


def recompute(session: Session, row: UpdatedSandbox | Sandbox) -> dict[str, Any]:
    """Recompute the deadline columns from a row as its UPDATE returned it.

    The spec is read after that UPDATE: a change of the spec writes the row too, either before this transaction does or
    after it has committed.

    Returns:
        The deadline columns.
    """
    [spec] = send(session, DURATIONS, bind_values(spec_id=row.spec_id))
    durations = in_force(row, Durations(*spec))
    deadline = next_deadline(row, durations)
    columns: dict[str, Any] = dict.fromkeys(DERIVED) | {"expires_at": expiry(row.created_at, durations)}
    if deadline is not None:
        columns |= {"deadline_at": deadline.at, "deadline_does": deadline.action}
    if any(getattr(row, name) != value for name, value in columns.items()):
        send(session, UPDATE_DERIVED, bind_values(sandbox_id=row.id, **columns))
    return columns


def in_force(sandbox: UpdatedSandbox | Sandbox, spec: Any) -> Durations:
    """Return the sandbox's own durations, and its spec's where it has none. A warm sandbox has no deadlines.

    Args:
        spec: any object with the columns named in `FIELDS`.
    """
    if sandbox.owner_id is None:
        return Durations()
    own, default = ({name: getattr(row, name) for name in FIELDS} for row in (sandbox, spec))
    return combine(own, default)


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
    since = now() - sandbox.last_active_at
    return (
        since >= activity_resolution(sandbox) or since < -FARTHEST
    )  # a time from a wrong clock must not block new ones


def record_activity(session: Session, sandbox_id: str) -> None:
    """Record activity of the sandbox. The caller must not hold locks on its conversations or start tasks."""
    exists = (col(Sandbox.id) == sandbox_id, col(Sandbox.desired) != Desired.DELETED)
    if write_activity(session, and_(*exists)):
        refresh(session, sandbox_id)


def count_from_now(session: Session, sandbox_id: str) -> None:
    """Replace the times from which a sandbox's idle deadline counts, if they are from before the clock was set back."""
    times = {name: getattr(Sandbox, name) for name in ("status_changed_at", "last_active_at")}
    values = {name: case((is_ahead(time), literal(now(), time.type)), else_=time) for name, time in times.items()}
    if count_written(session, guarded_update(Sandbox, col(Sandbox.id) == sandbox_id, values)):
        change_recorder.record_change(session, refresh(session, sandbox_id))


def write_activity(session: Session, where: ColumnElement[bool]) -> bool:
    """Set the time of the last activity where the condition holds; return whether a row was written."""
    return bool(count_written(session, guarded_update(Sandbox, where, {"last_active_at": now()})))


def _idle(row: UpdatedSandbox | Sandbox, durations: Durations) -> Deadline | None:
    # A desired state that is being reconciled is left alone: the state it leads to has a deadline of its own.
    if row.generation != row.observed_generation:
        return None
    action, seconds = _next_action(row, durations)
    at = _after(max(row.status_changed_at, row.last_active_at), seconds)
    return Deadline(at, action) if at else None


def _next_action(row: UpdatedSandbox | Sandbox, durations: Durations) -> tuple[DeadlineAction, int | None]:
    match row.status:
        case Status.RUNNING:
            return DeadlineAction.FREEZE, durations.freeze_after_seconds
        case Status.PAUSED if row.pause_kind == PauseKind.FROZEN:
            return DeadlineAction.STOP, durations.stop_after_seconds
        case Status.PAUSED | Status.ERROR:
            return DeadlineAction.DELETE, durations.delete_after_seconds
        case _:
            return DeadlineAction.FREEZE, None


def _after(at: datetime, seconds: int | None) -> datetime | None:
    return at + timedelta(seconds=seconds) if seconds else None


# --- prepared statements --------------------------------------------------------------------------------------------

THIS = col(Sandbox.id) == bind("sandbox_id")
FIND = select(Sandbox).where(THIS).execution_options(populate_existing=True)
DURATIONS = sql_select(*(getattr(SandboxSpec, name) for name in FIELDS)).where(col(SandboxSpec.id) == bind("spec_id"))
UPDATE_DERIVED = update(Sandbox).where(THIS).values({name: bind(name) for name in DERIVED})
