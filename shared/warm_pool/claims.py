"""Claims from the warm pool: by one conditional UPDATE, so two at once get two members, or one of them none.

Only members at rest are claimed: whoever holds one would write over the claim what he saw before it.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    Insert,
    Integer,
    Select,
    String,
    Update,
    and_,
    case,
    func,
    insert,
    literal,
    literal_column,
    null,
    or_,
    select,
    update,
)
from sqlmodel import Session

from shared.changes import recorder as change_recorder
from shared.changes.change_entry import table_of, with_entry
from shared.changes.recorder import Kind
from shared.clock import now
from shared.crypto import Vault
from shared.db.database import Database
from shared.models import Node, Sandbox, SandboxSpec, SandboxTransition, UserSettings
from shared.models.columns import UtcDateTime
from shared.nodes import placement
from shared.observability import metrics
from shared.observability.metrics import Source
from shared.sandboxes import create as sandbox_creation
from shared.sandboxes import deadlines
from shared.sandboxes.deadline_policy import FIELDS, NEVER
from shared.sql.prepared import give, given, make_row
from shared.states import Desired, Reason, Status

MEMBER, NODE, SPEC, MOVE = map(table_of, (Sandbox, Node, SandboxSpec, SandboxTransition))
SETTINGS = table_of(UserSettings)
# The columns that a claim writes, besides `status` and `generation`, and what they are given by.
TIMES = ("created_at", "updated_at", "settled_at", "last_active_at")
GIVEN = ("owner_id", "due_at", "session_key", "session_key_digest", *FIELDS)
TYPES: dict[str, Any] = {
    "now": UtcDateTime(),
    "oldest_heartbeat": UtcDateTime(),
    "spec_id": String(),
    "is_ageless": Boolean(),
    **{name: MEMBER.c[name].type for name in GIVEN},
}
ORDER = (MEMBER.c.settled_at, MEMBER.c.id)
# In settings as they are stored, before the spec's id.
NAMES_SPEC = '"default_sandbox_spec_id":"'


def claim(
    session: Session, vault: Vault, *, owner_id: str, spec: SandboxSpec, due_at: datetime, own: Mapping[str, int | None]
) -> Sandbox | None:
    """A ready member of a spec's pool for somebody, in the caller's transaction; None: there is none.

    Args:
        own: its deadlines, by the names of `shared.sandboxes.deadline_policy.FIELDS`.
    """
    values = _give(vault, owner_id, due_at, own) | give(spec_id=spec.id)
    sandbox_id = session.execute(IN_TRANSACTION, values).scalar_one_or_none()
    if sandbox_id is None:
        return None
    session.add(
        SandboxTransition(
            sandbox_id=sandbox_id, from_status=Status.RUNNING, to_status=Status.STARTING, reason=Reason.CLAIMED
        )
    )
    sandbox = deadlines.refresh(session, sandbox_id)
    change_recorder.record_change(session, sandbox)
    return sandbox


def claim_and_commit(
    database: Database,
    vault: Vault,
    *,
    owner_id: str,
    spec_id: str | None,
    due_at: datetime,
    own: Mapping[str, int | None],
) -> tuple[Sandbox, SandboxSpec] | None:
    """The same with all that belongs to it, committed, in one message to PostgreSQL instead of ten.

    What is not common is left to `claim`: a greatest age must be reckoned with, say. And SQLite, which knows no such
    statement, is asked without messages.

    Args:
        spec_id: None: as `specs.choose_spec` has it.

    Returns:
        The sandbox and its spec; None: nothing was done.
    """
    if database.engine.dialect.name != "postgresql" or own.get("max_age_seconds"):
        return None
    is_ageless = own.get("max_age_seconds") == NEVER
    values = _give(vault, owner_id, due_at, own) | give(spec_id=spec_id, is_ageless=is_ageless)
    for row in database.execute_and_commit(ALONE, values):
        sandbox: Sandbox = make_row(Sandbox, row[: len(MEMBER.c)])
        spec: SandboxSpec = make_row(SandboxSpec, row[len(MEMBER.c) :])
        database.notify(change_recorder.Change(owner_id, Kind.SANDBOX, sandbox.id, sandbox.status))
        metrics.count_start(spec.id, Source.POOL)
        return sandbox, spec
    return None


def is_warm() -> ColumnElement[bool]:
    """What is true of a sandbox in the pool, ready or not; one that is to go is in it no more."""
    # In the words of its index: of a parameter the database can't tell that it is the same.
    return and_(MEMBER.c.owner_id.is_(None), MEMBER.c.desired != literal_column("'DELETED'"))


def _give(vault: Vault, owner_id: str, due_at: datetime, own: Mapping[str, int | None]) -> dict[str, Any]:
    columns = {"owner_id": owner_id, "due_at": due_at, **dict.fromkeys(FIELDS), **own}
    columns |= {
        "now": now(),
        "oldest_heartbeat": placement.oldest_heartbeat(),
        **sandbox_creation.new_session_key(vault),
    }
    return give(**columns)


# --- the statements, made once ----------------------------------------------------------------------------------------


def _given(name: str) -> Any:
    """A value that comes with each claim, of the type of the column that it goes into."""
    return given(name, TYPES[name])


def _claim(spec_id: Any, revision: Any) -> Update:
    ready = (
        select(MEMBER.c.id)
        .join(NODE, NODE.c.id == MEMBER.c.node_id)
        .where(
            is_warm(),
            MEMBER.c.spec_id == spec_id,
            MEMBER.c.spec_revision == revision,
            MEMBER.c.desired == Desired.RUNNING,
            MEMBER.c.status == Status.RUNNING,
            MEMBER.c.due_at.is_(None),
            MEMBER.c.lease_until.is_(None),
            *placement.takes_sandboxes(_given("oldest_heartbeat")),
        )
    )
    first = ready.order_by(*ORDER).limit(1).with_for_update(of=MEMBER, skip_locked=True)
    return (
        update(MEMBER)
        .where(MEMBER.c.id == first.scalar_subquery(), is_warm())
        .values(
            generation=MEMBER.c.generation + 1,
            status=Status.STARTING,
            exposed_urls=None,
            ready_at=None,
            **dict.fromkeys(TIMES, _given("now")),
            **{name: _given(name) for name in GIVEN},
        )
    )


def _claim_alone() -> Select[Any]:
    """The claim, its place in the history and in its owner's log, and what they were made from."""
    spec = _wanted_spec()
    one = select(spec.c.id).scalar_subquery(), select(spec.c.revision).scalar_subquery()
    claimed = _claim(*one).returning(*MEMBER.c).cte("claimed")
    found = select(*claimed.c, *spec.c).where(spec.c.id == claimed.c.spec_id)
    moved = found.add_cte(_move(claimed).cte("moved"))
    return with_entry(moved, claimed, claimed.c.status, claimed.c.created_at)


def _wanted_spec() -> CTE:
    """The spec, if it has a pool and no greatest age.

    It is not locked, so that a claim waits for nobody who changes it: who changes its deadlines locks its members, and
    a member that its revision has outdated is not claimed.
    """
    first = select(SPEC.c.id).order_by(SPEC.c.position, SPEC.c.id).limit(1).scalar_subquery()
    default = case((_names_with_escapes(), null()), else_=first)
    is_ageless = or_(_given("is_ageless"), SPEC.c.max_age_seconds.is_(None))
    wanted = SPEC.c.id == func.coalesce(_given("spec_id"), _preferred(), default)
    return select(SPEC).where(wanted, SPEC.c.warm_most > 0, is_ageless).cte("spec")


def _preferred() -> ColumnElement[Any]:
    """The spec that the owner's settings name, if it is there.

    Settings are a text, as `Json` writes it: PostgreSQL's own JSON would refuse some.
    """
    named = literal(NAMES_SPEC).concat(SPEC.c.id).concat(literal('"'))
    is_named = func.strpos(SETTINGS.c.document, named, type_=Integer()) > 0
    found = select(SPEC.c.id).join(SETTINGS, SETTINGS.c.user_id == _given("owner_id")).where(is_named)
    return found.limit(1).correlate(None).scalar_subquery()


def _names_with_escapes() -> ColumnElement[bool]:
    """Whether the owner's settings name a spec whose id JSON writes with escapes: the slow way can read these."""
    value = func.split_part(func.split_part(SETTINGS.c.document, NAMES_SPEC, 2), '"', 1)
    escaped = func.strpos(value, "\\", type_=Integer()) > 0
    return select(literal(1)).where(SETTINGS.c.user_id == _given("owner_id"), escaped).correlate(None).exists()


def _move(claimed: CTE) -> Insert:
    values = {
        MOVE.c.sandbox_id: claimed.c.id,
        MOVE.c.from_status: literal(Status.RUNNING.value),
        MOVE.c.to_status: claimed.c.status,
        MOVE.c.reason: literal(Reason.CLAIMED.value),
        MOVE.c.at: claimed.c.created_at,
    }
    return insert(MOVE).from_select(list(values), select(*values.values()))


REVISION = select(SPEC.c.revision).where(SPEC.c.id == _given("spec_id")).scalar_subquery()
IN_TRANSACTION = _claim(_given("spec_id"), REVISION).returning(MEMBER.c.id)
ALONE = _claim_alone()
