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
    Row,
    Select,
    String,
    Table,
    Update,
    and_,
    bindparam,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql
from sqlmodel import Session

from shared import changes, instruments
from shared.changes import Kind
from shared.clock import now
from shared.crypto import Vault
from shared.database import Database
from shared.deadlines import FIELDS, NEVER
from shared.instruments import Source
from shared.models import ChangeEntry, ChangeLog, Node, Sandbox, SandboxSpec, SandboxTransition
from shared.models.columns import UtcDateTime
from shared.states import Desired, Reason, Status
from shared.store import deadlines, nodes, sandboxes, specs


def _table(model: Any) -> Table:
    found: Table = model.__table__
    return found


MEMBER, NODE, SPEC, MOVE, LOG, ENTRY = map(
    _table, (Sandbox, Node, SandboxSpec, SandboxTransition, ChangeLog, ChangeEntry)
)
# The columns that a claim writes, besides `status` and `generation`, and what they are given by.
TIMES = ("created_at", "updated_at", "settled_at", "last_active_at")
GIVEN = ("owner_id", "due_at", "session_key", "session_key_digest", *FIELDS)
TYPES: dict[str, Any] = {
    "now": UtcDateTime(),
    "oldest_heartbeat": UtcDateTime(),
    "spec_id": String(),
    "revision": Integer(),
    "is_ageless": Boolean(),
    **{name: MEMBER.c[name].type for name in GIVEN},
}
ORDER = (MEMBER.c.settled_at, MEMBER.c.id)


def claim(
    session: Session, vault: Vault, *, owner_id: str, spec: SandboxSpec, due_at: datetime, own: Mapping[str, int | None]
) -> Sandbox | None:
    """A ready member of a spec's pool for somebody, in the caller's transaction; None: there is none.

    Args:
        own: its deadlines, by the names of `shared.deadlines.FIELDS`.
    """
    given = _give(vault, owner_id, due_at, own) | {"given_spec_id": spec.id, "given_revision": spec.revision}
    sandbox_id = session.execute(IN_TRANSACTION, given).scalar_one_or_none()
    if sandbox_id is None:
        return None
    session.add(
        SandboxTransition(
            sandbox_id=sandbox_id, from_status=Status.RUNNING, to_status=Status.STARTING, reason=Reason.CLAIMED
        )
    )
    specs.hold(session, spec)
    sandbox = deadlines.refresh(session, sandbox_id)
    changes.note(session, sandbox)
    return sandbox


def claim_at_once(
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
        spec_id: None: the default spec.

    Returns:
        The sandbox and its spec; None: nothing was done.
    """
    if database.engine.dialect.name != "postgresql" or own.get("max_age_seconds"):
        return None
    is_ageless = own.get("max_age_seconds") == NEVER
    given = _give(vault, owner_id, due_at, own) | {"given_spec_id": spec_id, "given_is_ageless": is_ageless}
    with database.single() as session:
        row = session.execute(ALONE, given).one_or_none()
        if row is None:
            return None
        sandbox, spec = _read(row, Sandbox), _read(row, SandboxSpec)
        changes.note(session, sandbox)
        instruments.note_start(session, spec.id, Source.POOL)
    return sandbox, spec


def is_member() -> ColumnElement[bool]:
    """What is true of a sandbox in the pool, ready or not; one that is to go is in it no more."""
    return and_(MEMBER.c.owner_id.is_(None), MEMBER.c.desired != Desired.DELETED)


def _give(vault: Vault, owner_id: str, due_at: datetime, own: Mapping[str, int | None]) -> dict[str, Any]:
    columns = {"owner_id": owner_id, "due_at": due_at, **dict.fromkeys(FIELDS), **own}
    columns |= {"now": now(), "oldest_heartbeat": nodes.oldest_heartbeat(), **sandboxes.new_session_key(vault)}
    return {f"given_{name}": value for name, value in columns.items()}


def _read(row: Row[Any], model: type[Any]) -> Any:
    """The model that the row has in columns labelled with its table's name."""
    prefix = f"{model.__tablename__}__"
    return model(**{name[len(prefix) :]: value for name, value in row._asdict().items() if name.startswith(prefix)})


# --- the statements, made once ----------------------------------------------------------------------------------------


def _given(name: str) -> Any:
    """A value that comes with each claim, of the type of the column that it goes into."""
    return bindparam(f"given_{name}", type_=TYPES[name])


def _claim(spec_id: Any, revision: Any) -> Update:
    ready = (
        select(MEMBER.c.id)
        .join(NODE, NODE.c.id == MEMBER.c.node_id)
        .where(
            is_member(),
            MEMBER.c.spec_id == spec_id,
            MEMBER.c.spec_revision == revision,
            MEMBER.c.desired == Desired.RUNNING,
            MEMBER.c.status == Status.RUNNING,
            MEMBER.c.due_at.is_(None),
            MEMBER.c.lease_until.is_(None),
            *nodes.takes_sandboxes(_given("oldest_heartbeat")),
        )
    )
    first = ready.order_by(*ORDER).limit(1).with_for_update(of=MEMBER, skip_locked=True)
    return (
        update(MEMBER)
        .where(MEMBER.c.id == first.scalar_subquery(), is_member())
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
    held = _held_spec()
    one = select(held.c.id).scalar_subquery(), select(held.c.revision).scalar_subquery()
    claimed = _claim(*one).returning(*MEMBER.c).cte("claimed")
    numbered = _number(claimed)
    parts = ((MEMBER.name, claimed), (SPEC.name, held))
    columns = [column.label(f"{name}__{column.name}") for name, part in parts for column in part.c]
    found = select(*columns).where(held.c.id == claimed.c.spec_id)
    return found.add_cte(_move(claimed).cte("moved"), _enter(claimed, numbered).cte("entered"))


def _held_spec() -> CTE:
    """The spec, if it has a pool and no greatest age; nobody changes it until the statement is over."""
    default = select(SPEC.c.id).order_by(SPEC.c.position, SPEC.c.id).limit(1).scalar_subquery()
    is_ageless = or_(_given("is_ageless"), SPEC.c.max_age_seconds.is_(None))
    wanted = SPEC.c.id == func.coalesce(_given("spec_id"), default)
    return select(SPEC).where(wanted, SPEC.c.warm_most > 0, is_ageless).with_for_update(read=True).cte("held")


def _move(claimed: CTE) -> Insert:
    values = {
        MOVE.c.sandbox_id: claimed.c.id,
        MOVE.c.from_status: literal(Status.RUNNING.value),
        MOVE.c.to_status: claimed.c.status,
        MOVE.c.reason: literal(Reason.CLAIMED.value),
        MOVE.c.at: claimed.c.created_at,
    }
    return insert(MOVE).from_select(list(values), select(*values.values()))


def _number(claimed: CTE) -> CTE:
    """The number in the owner's log: its lock is the last one taken."""
    first = postgresql.insert(LOG).from_select([LOG.c.owner_id, LOG.c.last], select(claimed.c.owner_id, literal(1)))
    counted = first.on_conflict_do_update(index_elements=[LOG.c.owner_id], set_={"last": LOG.c.last + 1})
    return counted.returning(LOG.c.owner_id, LOG.c.last).cte("numbered")


def _enter(claimed: CTE, numbered: CTE) -> Insert:
    values = {
        ENTRY.c.owner_id: claimed.c.owner_id,
        ENTRY.c.number: numbered.c.last,
        ENTRY.c.kind: literal(Kind.SANDBOX.value),
        ENTRY.c.row_id: claimed.c.id,
        ENTRY.c.status: claimed.c.status,
        ENTRY.c.at: claimed.c.created_at,
    }
    found = select(*values.values()).where(numbered.c.owner_id == claimed.c.owner_id)
    return insert(ENTRY).from_select(list(values), found)


IN_TRANSACTION = _claim(_given("spec_id"), _given("revision")).returning(MEMBER.c.id)
ALONE = _claim_alone()
