"""Deadlines in the store: the columns that the sweep reads, and the wishes that it writes (law 8).

`deadline_at` and `deadline_does` follow from other columns. Whatever changes one of these calls `refresh` in the same
transaction, so that no deadline is forgotten and none outlives its cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from sqlalchemy import ColumnElement, and_, case, func, or_, update
from sqlalchemy import select as sql_select
from sqlalchemy.orm.attributes import set_committed_value
from sqlmodel import Session, col, select

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.leasing.leases import FARTHEST
from shared.models import Conversation, Node, Sandbox, SandboxSpec, StartTask
from shared.sandboxes import deadline_policy
from shared.sandboxes.deadline_policy import FIELDS, Durations, Situation
from shared.sql import locks
from shared.sql.prepared import give, given, send
from shared.states import FINAL_STAGES, DeadlineAction, Desired, NodeStatus, Status

# How stale `last_active_at` may be: every batch of events is a use.
LAST_USE_RESOLUTION = timedelta(seconds=10)
# Where a sandbox is frozen within seconds, a tenth of that.
LAST_USE_PART = 10
# What follows from the other columns, and from the spec's.
DERIVED = ("deadline_at", "deadline_does", "expires_at")
# What a deadline's wish shows that it has seen.
SEEN = ("node_id", "generation", *DERIVED)


class Used(Protocol):
    """What of a sandbox says how long ago its last use was written down."""

    @property
    def last_active_at(self) -> datetime:
        """As in the row, and so are the others."""

    @property
    def deadline_at(self) -> datetime | None:
        """See `refresh`."""

    @property
    def deadline_does(self) -> str | None:
        """See `refresh`."""


class Written(NamedTuple):
    """As much of a row that was just written as its deadlines depend on, and as its owner is told."""

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
    """A deadline that has passed, as it was seen: what has changed since holds."""

    sandbox_id: str
    node_id: str | None
    generation: int
    deadline_at: datetime
    deadline_does: str
    expires_at: datetime | None

    @property
    def does(self) -> DeadlineAction:
        """What is to be done: one that has expired too is not frozen first."""
        expired = self.expires_at is not None and self.expires_at <= now()
        return DeadlineAction.EXPIRE if expired else DeadlineAction(self.deadline_does)


# --- inputs ---------------------------------------------------------------------------------------------------------


def refresh(session: Session, sandbox_id: str) -> Sandbox:
    """Make the deadline columns follow from the others; the caller has written the row in this transaction.

    Returns:
        The row as it is by now.
    """
    session.flush()
    row = session.scalars(FIND, give(sandbox_id=sandbox_id)).one()
    for name, value in recompute(session, row).items():
        set_committed_value(row, name, value)
    return row


def recompute(session: Session, row: Written | Sandbox) -> dict[str, Any]:
    """The same for a row that the caller has just written, as it was returned.

    The spec is read after that: whoever changes it writes the row too, before this or when this is over.

    Returns:
        The deadline columns.
    """
    [spec] = send(session, DURATIONS, give(spec_id=row.spec_id))
    durations = in_force(row, Durations(*spec))
    following = deadline_policy.next_deadline(_situation(row), durations)
    columns: dict[str, Any] = dict.fromkeys(DERIVED) | {"expires_at": deadline_policy.expiry(row.created_at, durations)}
    if following is not None:
        columns |= {"deadline_at": following.at, "deadline_does": following.does}
    if any(getattr(row, name) != value for name, value in columns.items()):
        send(session, FOLLOW, give(sandbox_id=row.id, **columns))
    return columns


def while_unanswered(desired: Desired) -> dict[str, Any]:
    """What `refresh` comes to for a wish that was written just now, as columns: its greatest age counts, nothing else.

    Its greatest age is that of before: no wish changes it.
    """
    if desired == Desired.DELETED:
        return {"deadline_at": None, "deadline_does": None}
    status = col(Sandbox.status)
    never = or_(col(Sandbox.expires_at).is_(None), status == Status.DELETING, status == Status.DELETED)
    return {
        "deadline_at": case((never, None), else_=col(Sandbox.expires_at)),
        "deadline_does": case((never, None), else_=DeadlineAction.EXPIRE.value),
    }


def in_force(sandbox: Written | Sandbox, spec: Any) -> Durations:
    """The sandbox's own durations, and its spec's where it has none; a member of the warm pool has none at all.

    Args:
        spec: whatever has the columns of a spec that are named in `shared.sandboxes.deadline_policy.FIELDS`.
    """
    if sandbox.owner_id is None:
        return Durations()
    own, default = ({name: getattr(row, name) for name in FIELDS} for row in (sandbox, spec))
    return deadline_policy.combine(own, default)


def in_force_for(session: Session, rows: Sequence[Sandbox]) -> dict[str, Durations]:
    """The durations in force for each of these sandboxes, by its id."""
    ids = {row.spec_id for row in rows}
    found = session.exec(select(SandboxSpec).where(col(SandboxSpec.id).in_(ids))).all() if ids else ()
    specs = {spec.id: spec for spec in found}
    return {row.id: in_force(row, specs[row.spec_id]) for row in rows}


def use_resolution(sandbox: Used) -> timedelta:
    """How stale the sandbox's `last_active_at` may be."""
    if sandbox.deadline_at is not None and sandbox.deadline_does == DeadlineAction.FREEZE:
        return min(LAST_USE_RESOLUTION, (sandbox.deadline_at - sandbox.last_active_at) / LAST_USE_PART)
    return LAST_USE_RESOLUTION


def is_use_stale(sandbox: Used) -> bool:
    """Whether the sandbox's last use is worth writing down again."""
    since = now() - sandbox.last_active_at
    return since >= use_resolution(sandbox) or since < -FARTHEST  # a clock that was wrong must not stop this one


def record_use(session: Session, sandbox_id: str) -> None:
    """Write down that the sandbox is used now. Lock nothing of its conversations and tasks before."""
    used = (col(Sandbox.id) == sandbox_id, col(Sandbox.desired) != Desired.DELETED)
    if _write(session, and_(*used), {"last_active_at": now()}):
        refresh(session, sandbox_id)


# --- the sweep ------------------------------------------------------------------------------------------------------


def overdue(session: Session, node_id: str, limit: int = 100) -> Sequence[DueDeadline]:
    """The deadlines that have passed, oldest first, for a worker of that node.

    To freeze and to stop is left to the sandbox's own node, while that is there. To delete is for whoever sees it: the
    node may be lost, or there may be none yet, and it is gone for its owner from now on.
    """
    lost = select(Node.id).where(Node.id == Sandbox.node_id, Node.status == NodeStatus.LOST)
    ours = and_(col(Sandbox.node_id) == node_id, ~lost.exists())
    columns: list[Any] = [Sandbox.id, *(getattr(Sandbox, name) for name in SEEN)]
    passed = select(*columns).where(col(Sandbox.deadline_at) <= now(), or_(_deletes(), ours))
    rows: Sequence[Any] = session.exec(passed.order_by(col(Sandbox.deadline_at)).limit(limit)).all()
    return [DueDeadline(*row) for row in rows]


def count_doomed(session: Session, spec_id: str) -> int:
    """How many sandboxes of a spec are to be deleted at once."""
    passed = (Sandbox.spec_id == spec_id, col(Sandbox.deadline_at) <= now(), _deletes())
    return session.exec(select(func.count()).select_from(Sandbox).where(*passed)).one()


def apply_deadline(session: Session, seen: DueDeadline, *, due_at: datetime) -> bool:
    """Wish what the deadline says, if all is still as it was seen; a sandbox that is in use is given more time instead.

    One that somebody has locked is left to the next sweep.

    Returns:
        Whether it was wished.
    """
    does = seen.does
    desired, reason = does.wish
    unchanged = and_(
        col(Sandbox.id) == seen.sandbox_id,
        col(Sandbox.desired) != Desired.DELETED,
        *(getattr(Sandbox, name).is_not_distinct_from(getattr(seen, name)) for name in SEEN),
    )
    if session.execute(locks.in_order(Sandbox, unchanged, skip_locked=True)).first() is None:
        return False
    values = {
        "desired": desired,
        "wish_reason": reason,
        "generation": col(Sandbox.generation) + 1,
        "due_at": due_at,
        "updated_at": now(),
    }
    wished = _write(session, and_(unchanged, ~_in_use()) if does == DeadlineAction.FREEZE else unchanged, values)
    if wished or _write(session, unchanged, {"last_active_at": now()}):
        change_recorder.record_change(session, refresh(session, seen.sandbox_id))
    return wished


def _deletes() -> ColumnElement[bool]:
    by_deadline = col(Sandbox.deadline_does).in_((DeadlineAction.DELETE, DeadlineAction.EXPIRE))
    return or_(by_deadline, col(Sandbox.expires_at) <= now())


def _in_use() -> ColumnElement[bool]:
    """An agent is at work, or on its way."""
    here = col(Conversation.sandbox_id) == col(Sandbox.id)
    at_work = select(Conversation.id).where(here, Conversation.execution_status == "running")
    starting = select(StartTask.id).where(
        col(StartTask.sandbox_id) == col(Sandbox.id), col(StartTask.stage).not_in(FINAL_STAGES)
    )
    return or_(at_work.exists(), starting.exists())


def _situation(row: Written | Sandbox) -> Situation:
    return Situation(
        desired=row.desired,
        status=row.status,
        pause_kind=row.pause_kind,
        answered=row.generation == row.observed_generation,
        created_at=row.created_at,
        settled_at=row.settled_at,
        last_active_at=row.last_active_at,
    )


def _write(session: Session, where: ColumnElement[bool], values: dict[str, Any]) -> bool:
    statement = update(Sandbox).where(where).values(**values).execution_options(synchronize_session=False)
    return bool(session.execute(statement).rowcount)  # type: ignore[attr-defined]


# --- the statements, made once --------------------------------------------------------------------------------------

THIS = col(Sandbox.id) == given("sandbox_id")
FIND = select(Sandbox).where(THIS).execution_options(populate_existing=True)
DURATIONS = sql_select(*(getattr(SandboxSpec, name) for name in FIELDS)).where(col(SandboxSpec.id) == given("spec_id"))
FOLLOW = update(Sandbox).where(THIS).values({name: given(name) for name in DERIVED})
