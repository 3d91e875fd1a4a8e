"""What owners wish of their sandboxes. A wish is one conditional UPDATE: nothing can be wished of what is deleted."""

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
    """What a wish has come to."""

    id: str
    owner_id: str
    node_id: str | None
    generation: int
    # What its owner sees of it from now on.
    shown: str

    @property
    def change(self) -> Change:
        """What is told of it."""
        return Change(self.owner_id, Kind.SANDBOX, self.id, self.shown)


def set_desired(
    session: Session, sandbox: Sandbox, desired: Desired, *, due_at: datetime, reason: Reason | None = None
) -> None:
    """Wish for another state. Wishing for what is wished already is a new wish too: it repairs what has drifted.

    To wish that it runs is to use it. `sandbox` is brought up to date. `reason`: why, if its owner has not asked for
    it.

    Raises:
        NotFound: the sandbox is deleted, or somebody deleted it at this moment.
    """
    row = session.scalars(_wishing(desired), _give(sandbox.id, due_at, reason)).one_or_none()
    if row is None:
        raise NotFound("sandbox", sandbox.id)
    change_recorder.record_change(session, row)


def set_desired_and_commit(
    database: Database, sandbox_id: str, owner_id: str, desired: Desired, *, due_at: datetime
) -> DesiredStateResult:
    """The same for its owner, with its place in the change log, committed: in one message to PostgreSQL, not five.

    Raises:
        NotFound: there is none, it is deleted, or it is somebody else's.
    """
    values = _give(sandbox_id, due_at) | give(owner_id=owner_id)
    if database.engine.dialect.name == "postgresql":
        wished = _require(database.execute_and_commit(_wishing_alone(desired), values), sandbox_id)
        database.notify(wished.change)
        return wished
    with database.transaction() as session:
        wished = _require(send(session, _wishing_own(desired), values), sandbox_id)
        change_recorder.record_change_of(session, wished.change)
        return wished


def bump_generation(session: Session, sandbox_id: str, *, due_at: datetime) -> bool:
    """Have what is wished, whatever it is by now, carried out once more.

    Not what ended in ERROR: that waits for the owner's word. And a deletion needs no repeating.

    Returns:
        Whether there was something to repeat.
    """
    standing = and_(col(Sandbox.desired) != Desired.DELETED, col(Sandbox.status) != Status.ERROR)
    values = {"generation": col(Sandbox.generation) + 1, "due_at": due_at}
    statement = update(Sandbox).where(col(Sandbox.id) == sandbox_id, standing).values(**values)
    if session.execute(statement.execution_options(synchronize_session=False)).rowcount == 0:  # type: ignore[attr-defined]
        return False
    change_recorder.record_change(session, deadlines.refresh(session, sandbox_id))
    return True


def acknowledge(session: Session, sandbox_id: str, fence: int, generation: int) -> None:
    """Clear `due_at` for a desired state that the holder of the sandbox's lease is about to reconcile.

    A newer desired state, which came after the holder read this one, keeps its `due_at`.
    """
    send(session, ACKNOWLEDGING, give(sandbox_id=sandbox_id, fence=fence, generation=generation))


def _give(sandbox_id: str, due_at: datetime, reason: Reason | None = None) -> dict[str, Any]:
    return give(sandbox_id=sandbox_id, due_at=due_at, now=now(), reason=reason)


def _require(rows: Rows, sandbox_id: str) -> DesiredStateResult:
    for row in rows:
        return DesiredStateResult(*row)
    raise NotFound("sandbox", sandbox_id)


# --- the statements, made once --------------------------------------------------------------------------------------


ACKNOWLEDGING = (
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
        **deadlines.while_unanswered(desired),
    }
    if desired == Desired.RUNNING:
        values["last_active_at"] = given("now")
    alive = and_(col(Sandbox.id) == given("sandbox_id"), col(Sandbox.desired) != Desired.DELETED)
    return update(Sandbox).where(alive).values(**values)


@cache
def _wishing(desired: Desired) -> Any:
    return _updating(desired).returning(Sandbox).execution_options(populate_existing=True)


@cache
def _wishing_own(desired: Desired) -> Any:
    own = _updating(desired).where(col(Sandbox.owner_id) == given("owner_id"))
    gone = and_(literal(desired == Desired.DELETED), col(Sandbox.status) != Status.DELETED)
    shown = case((gone, Status.DELETING.value), else_=col(Sandbox.status)).label("shown")
    columns = [getattr(Sandbox, name) for name in DesiredStateResult._fields if name != "shown"]
    return own.returning(*columns, shown)


@cache
def _wishing_alone(desired: Desired) -> Any:
    """The wish, and its place in its owner's log."""
    wished = _wishing_own(desired).cte("wished")
    return with_entry(select(*wished.c), wished, wished.c.shown, given("now", UtcDateTime()))
