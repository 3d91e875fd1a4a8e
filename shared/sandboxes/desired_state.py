"""The desired state of sandboxes. `desired` and `generation` are written by the UPDATE of this module only (law 2)."""

from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Update, and_, case, literal, or_, select
from sqlmodel import Session, col

from shared.changes import recorder as change_recorder
from shared.changes.change_entry import with_entry
from shared.changes.recorder import Change, Kind
from shared.clock import now
from shared.db.database import Database
from shared.errors import NotFound
from shared.models import Sandbox
from shared.models.columns import UtcDateTime
from shared.sql.statements import Rows, bind, bind_values, guarded_update, send, write_unchanged
from shared.states import DeadlineAction, Desired, Reason, Status

NOT_DELETED = col(Sandbox.desired) != Desired.DELETED


class CurrentDesiredState(NamedTuple):
    generation: int
    desired: str
    desired_reason: str | None


class DesiredStateResult(NamedTuple):
    """The outcome of `set_desired_and_commit`."""

    id: str
    owner_id: str
    node_id: str | None
    generation: int
    # The status in the owner's change feed.
    shown: str

    @property
    def change(self) -> Change:
        return Change(self.owner_id, Kind.SANDBOX, self.id, self.shown)


def set_desired(
    session: Session, sandbox: Sandbox, desired: Desired, *, due_at: datetime, reason: Reason | None = None
) -> None:
    """Write a desired state, and refresh `sandbox` from the row.

    Repeating the desired state starts a new generation too, which repairs drift. RUNNING counts as activity.

    Args:
        reason: why, if the owner did not request it.

    Raises:
        NotFound: the sandbox is deleted, or a concurrent request deleted it.
    """
    row = session.scalars(_setting(desired), _give(sandbox.id, due_at, reason)).one_or_none()
    if row is None:
        raise NotFound("sandbox", sandbox.id)
    change_recorder.record_change(session, row)


def set_desired_and_commit(
    database: Database, sandbox_id: str, owner_id: str, desired: Desired, *, due_at: datetime
) -> DesiredStateResult:
    """Write a desired state for the owner, with its change entry, and commit: one message to PostgreSQL, not five.

    Raises:
        NotFound: there is no such sandbox, it is deleted, or it belongs to another user.
    """
    values = _give(sandbox_id, due_at) | bind_values(owner_id=owner_id)
    if database.engine.dialect.name == "postgresql":
        result = _require(database.execute_and_commit(_setting_with_entry(desired), values), sandbox_id)
        database.notify(result.change)
        return result
    with database.transaction() as session:
        result = _require(send(session, _setting_own(desired), values), sandbox_id)
        change_recorder.record_change_of(session, result.change)
        return result


def bump_generation(session: Session, sandbox_id: str, *, due_at: datetime) -> bool:
    """Have the current desired state reconciled as a new generation.

    A sandbox in ERROR waits for its owner instead. A deletion needs no repeating.

    Returns:
        Whether a new generation was started.
    """
    repeatable = and_(NOT_DELETED, col(Sandbox.status) != Status.ERROR)
    bumped = new_generation(None, and_(col(Sandbox.id) == sandbox_id, repeatable), due_at=due_at, at=now())
    row = session.scalars(bumped.returning(Sandbox).execution_options(populate_existing=True)).one_or_none()
    if row is not None:
        change_recorder.record_change(session, row)
    return row is not None


def new_generation(
    desired: Desired | None, where: ColumnElement[bool], *, due_at: Any, at: Any, reason: Any = None
) -> Update:
    """Build the UPDATE that starts a new generation, with its deadlines: the only writer of `desired` (law 2).

    Args:
        desired: the new desired state. None keeps the current one and its reason; `where` excludes DELETED then.
        where: a condition on the sandboxes.
        due_at: a time, or a bind parameter of a prepared statement; `at` and `reason` may be bind parameters too.
        at: the current time.
        reason: why, if the owner did not request it.
    """
    values = generation_columns(due_at=due_at, at=at) | _deadline_columns(desired)
    if desired is not None:
        values |= {"desired": desired, "desired_reason": reason}
    if desired == Desired.RUNNING:
        values["last_active_at"] = at
    statement: Update = guarded_update(Sandbox, where, values)
    return statement


def generation_columns(*, due_at: Any, at: Any) -> dict[str, Any]:
    """Return the columns that every new generation writes, for `new_generation` and the claim of a warm sandbox."""
    return {"generation": col(Sandbox.generation) + 1, "due_at": due_at, "updated_at": at}


def acknowledge(session: Session, sandbox_id: str, fence: int, generation: int) -> None:
    """Clear `due_at` for a desired state that the holder of the sandbox's lease is about to reconcile.

    A newer desired state, which came after the holder read this one, keeps its `due_at`.
    """
    expected = {"id": sandbox_id, "fence": fence, "generation": generation}
    write_unchanged(session, Sandbox, expected, {"due_at": None})


def _deadline_columns(desired: Desired | None) -> dict[str, Any]:
    """The deadline of a new generation, as `deadlines.refresh` would compute it: only the max age counts.

    `expires_at` does not depend on the desired state.
    """
    if desired == Desired.DELETED:
        return {"deadline_at": None, "deadline_does": None}
    status = col(Sandbox.status)
    never = or_(col(Sandbox.expires_at).is_(None), status == Status.DELETING, status == Status.DELETED)
    return {
        "deadline_at": case((never, None), else_=col(Sandbox.expires_at)),
        "deadline_does": case((never, None), else_=DeadlineAction.EXPIRE.value),
    }


def _give(sandbox_id: str, due_at: datetime, reason: Reason | None = None) -> dict[str, Any]:
    return bind_values(sandbox_id=sandbox_id, due_at=due_at, now=now(), reason=reason)


def _require(rows: Rows, sandbox_id: str) -> DesiredStateResult:
    for row in rows:
        return DesiredStateResult(*row)
    raise NotFound("sandbox", sandbox_id)


# --- prepared statements --------------------------------------------------------------------------------------------


@cache
def _updating(desired: Desired) -> Any:
    where = and_(col(Sandbox.id) == bind("sandbox_id"), NOT_DELETED)
    return new_generation(desired, where, due_at=bind("due_at"), at=bind("now"), reason=bind("reason"))


@cache
def _setting(desired: Desired) -> Any:
    return _updating(desired).returning(Sandbox).execution_options(populate_existing=True)


@cache
def _setting_own(desired: Desired) -> Any:
    own = _updating(desired).where(col(Sandbox.owner_id) == bind("owner_id"))
    is_deleting = and_(literal(desired == Desired.DELETED), col(Sandbox.status) != Status.DELETED)
    shown = case((is_deleting, Status.DELETING.value), else_=col(Sandbox.status)).label("shown")
    columns = [getattr(Sandbox, name) for name in DesiredStateResult._fields if name != "shown"]
    return own.returning(*columns, shown)


@cache
def _setting_with_entry(desired: Desired) -> Any:
    updated = _setting_own(desired).cte("updated")
    return with_entry(select(*updated.c), updated, updated.c.shown, bind("now", UtcDateTime()))
