"""The desired state of sandboxes: one conditional UPDATE, which never matches a deleted sandbox."""

from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import and_, case, literal, select, update
from sqlmodel import Session, col

from shared.changes import recorder as change_recorder
from shared.changes.change_entry import with_entry
from shared.changes.recorder import Change, Kind
from shared.clock import now
from shared.db.database import Database
from shared.errors import NotFound
from shared.models import Sandbox
from shared.models.columns import UtcDateTime
from shared.sandboxes import deadlines
from shared.sql.prepared import Rows, give, given, send
from shared.states import Desired, Reason, Status


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
        """The change to publish."""
        return Change(self.owner_id, Kind.SANDBOX, self.id, self.shown)


def set_desired(
    session: Session, sandbox: Sandbox, desired: Desired, *, due_at: datetime, reason: Reason | None = None
) -> None:
    """Write a desired state, and refresh `sandbox` from the row.

    Repeating the desired state starts a new generation too, which repairs drift. RUNNING counts as activity.

    Args:
        reason: why, if the owner has not asked for it.

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
    values = _give(sandbox_id, due_at) | give(owner_id=owner_id)
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
    repeatable = and_(col(Sandbox.desired) != Desired.DELETED, col(Sandbox.status) != Status.ERROR)
    values = {"generation": col(Sandbox.generation) + 1, "due_at": due_at}
    statement = update(Sandbox).where(col(Sandbox.id) == sandbox_id, repeatable).values(**values)
    if session.execute(statement.execution_options(synchronize_session=False)).rowcount == 0:  # type: ignore[attr-defined]
        return False
    change_recorder.record_change(session, deadlines.refresh(session, sandbox_id))
    return True


def acknowledge(session: Session, sandbox_id: str, fence: int, generation: int) -> None:
    """Clear `due_at` for a desired state that the holder of the sandbox's lease is about to reconcile.

    A newer desired state, which came after the holder read this one, keeps its `due_at`.
    """
    send(session, ACKNOWLEDGE, give(sandbox_id=sandbox_id, fence=fence, generation=generation))


def _give(sandbox_id: str, due_at: datetime, reason: Reason | None = None) -> dict[str, Any]:
    return give(sandbox_id=sandbox_id, due_at=due_at, now=now(), reason=reason)


def _require(rows: Rows, sandbox_id: str) -> DesiredStateResult:
    for row in rows:
        return DesiredStateResult(*row)
    raise NotFound("sandbox", sandbox_id)


# --- prepared statements --------------------------------------------------------------------------------------------

ACKNOWLEDGE = (
    update(Sandbox)
    .where(
        col(Sandbox.id) == given("sandbox_id"),
        col(Sandbox.fence) == given("fence"),
        col(Sandbox.generation) == given("generation"),
    )
    .values(due_at=None)
)


@cache
def _updating(desired: Desired) -> Any:
    values = {
        "desired": desired,
        "wish_reason": given("reason"),
        "generation": col(Sandbox.generation) + 1,
        "due_at": given("due_at"),
        "updated_at": given("now"),
        **deadlines.while_unobserved(desired),
    }
    if desired == Desired.RUNNING:
        values["last_active_at"] = given("now")
    alive = and_(col(Sandbox.id) == given("sandbox_id"), col(Sandbox.desired) != Desired.DELETED)
    return update(Sandbox).where(alive).values(**values)


@cache
def _setting(desired: Desired) -> Any:
    return _updating(desired).returning(Sandbox).execution_options(populate_existing=True)


@cache
def _setting_own(desired: Desired) -> Any:
    own = _updating(desired).where(col(Sandbox.owner_id) == given("owner_id"))
    is_deleting = and_(literal(desired == Desired.DELETED), col(Sandbox.status) != Status.DELETED)
    shown = case((is_deleting, Status.DELETING.value), else_=col(Sandbox.status)).label("shown")
    columns = [getattr(Sandbox, name) for name in DesiredStateResult._fields if name != "shown"]
    return own.returning(*columns, shown)


@cache
def _setting_with_entry(desired: Desired) -> Any:
    updated = _setting_own(desired).cte("updated")
    return with_entry(select(*updated.c), updated, updated.c.shown, given("now", UtcDateTime()))
