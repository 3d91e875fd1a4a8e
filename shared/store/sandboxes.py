"""Sandboxes: the API's wishes, the workers' facts, and the one door through which `status` changes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import and_, insert
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from shared import changes, leases
from shared.clock import now
from shared.crypto import Vault, new_api_key
from shared.database import Database
from shared.errors import IllegalMove, Invalid, NotFound
from shared.models import Sandbox, SandboxSpec, SandboxTransition
from shared.statements import all_columns, give, give_several, given, make_row, rounded, send, several
from shared.states import MOVES, Desired, PauseKind, Reason, Status
from shared.store import deadlines, nodes, specs


@dataclass(frozen=True)
class Fact:
    """What a worker found out about a sandbox."""

    status: Status
    reason: Reason | None = None
    detail: str | None = None
    pause_kind: PauseKind | None = None
    exposed_urls: list[dict[str, Any]] | None = None


class Standing(NamedTuple):
    """As much of a sandbox's row as its container is held against: read for a whole node every few seconds."""

    id: str
    desired: str
    generation: int
    observed_generation: int
    status: str
    pause_kind: str | None
    ready_at: datetime | None
    due_at: datetime | None
    lease_until: datetime | None


class Answered(NamedTuple):
    """The newest generation of a sandbox's desired state that a worker has reconciled, and the desired state by now."""

    generation: int
    desired: str


class WishAsFound(NamedTuple):
    """What is wished of a sandbox by now."""

    generation: int
    desired: str
    wish_reason: str | None


# --- wishes ---------------------------------------------------------------------------------------------------------


def create(
    session: Session,
    vault: Vault,
    *,
    owner_id: str | None,
    spec: SandboxSpec,
    due_at: datetime,
    own_deadlines: Mapping[str, int | None] | None = None,
    besides: Collection[str] = frozenset(),
) -> Sandbox:
    """Wish for a new sandbox, placed on a node if one has room.

    Args:
        owner_id: None: it is the warm pool's, and boots for nobody.
        besides: the nodes that it must not be placed on.
        own_deadlines: by the names of `shared.deadlines.FIELDS`, what it has instead of its spec's.
    """
    own: dict[str, Any] = dict(own_deadlines or {})
    specs.hold(session, spec)
    sandbox = Sandbox(
        owner_id=owner_id,
        spec_id=spec.id,
        spec_revision=spec.revision,
        node_id=nodes.place(session, spec.id, besides=besides, for_pool=owner_id is None),
        desired=Desired.RUNNING,
        status=Status.STARTING,
        boot_key=vault.encrypt(new_api_key()) if owner_id is None else None,
        due_at=due_at,
        **new_session_key(vault),
        **own,
    )
    session.add(sandbox)
    session.flush()
    session.add(SandboxTransition(sandbox_id=sandbox.id, to_status=Status.STARTING))
    changes.note(session, deadlines.refresh(session, sandbox.id))
    return sandbox


def new_session_key(vault: Vault) -> dict[str, Any]:
    """The columns of a key that nobody has seen yet."""
    key = new_api_key()
    return {"session_key": vault.encrypt(key), "session_key_digest": vault.digest(key)}


def set_deadlines(session: Session, sandbox: Sandbox, own_deadlines: Mapping[str, int | None]) -> None:
    """Change deadlines of a sandbox that the caller has locked; those not named stay. It counts as a use."""
    for name, seconds in own_deadlines.items():
        setattr(sandbox, name, seconds)
    sandbox.last_active_at = sandbox.updated_at = now()
    session.flush()
    changes.note(session, deadlines.refresh(session, sandbox.id))


# --- facts ----------------------------------------------------------------------------------------------------------


def move(
    session: Session,
    sandbox: Sandbox,
    fact: Fact,
    *,
    observed_generation: int | None = None,
    lets_go: bool = False,
) -> bool:
    """Write a fact under the lease the caller holds: the one door for `status` (law 6).

    Args:
        sandbox: the row as claimed, detached from its session; its `fence` is shown. It is brought up to date.
        fact: what is so now.
        observed_generation: the wish this fact answers; None while it is still being carried out.
        lets_go: this is all that the caller has to say, if the wish is still the one that it knows. `due_at` is
            brought up to date, too, to say if it must go on.

    Returns:
        Whether the status changed, or the kind of pause.

    Raises:
        LeaseLost: another worker owns the row now, or there is a newer wish to be answered; nothing was written.
        IllegalMove: the table of moves does not have this one; nothing was written.
    """
    before = Status(sandbox.status)
    if fact.status != before and fact.status not in MOVES[before]:
        raise IllegalMove(f"sandbox {sandbox.id}: {before} → {fact.status}")
    moved = (fact.status, fact.pause_kind) != (before, sandbox.pause_kind)
    columns = _columns(sandbox, fact, observed_generation)
    if moved:
        columns["settled_at"] = now()
    if lets_go:
        columns |= leases.LET_GO
    still = {"generation": sandbox.generation} if lets_go else None
    told = deadlines.Written._fields
    written = leases.write(session, Sandbox, sandbox.id, sandbox.fence, still=still, returning=told, **columns)
    for name, value in columns.items():
        setattr(sandbox, name, value)
    row = deadlines.Written(*written)
    deadlines.follow(session, row)
    sandbox.due_at = row.due_at if lets_go else sandbox.due_at
    changes.note(session, row)
    if moved:
        send(session, MOVE, _transition(sandbox.id, before, fact))
    return moved


def _columns(sandbox: Sandbox, fact: Fact, observed_generation: int | None) -> dict[str, Any]:
    columns: dict[str, Any] = {
        "status": fact.status,
        "reason": fact.reason,
        "detail": fact.detail,
        "pause_kind": fact.pause_kind,
        "exposed_urls": fact.exposed_urls,
        "updated_at": now(),
    }
    if observed_generation is not None:
        columns |= {"observed_generation": observed_generation, "attempt": 0}
    if fact.status == Status.RUNNING and sandbox.ready_at is None:
        columns["ready_at"] = now()
    return columns


def _transition(sandbox_id: str, before: Status, fact: Fact) -> dict[str, Any]:
    return give(
        sandbox_id=sandbox_id,
        from_status=before,
        to_status=fact.status,
        pause_kind=fact.pause_kind,
        reason=fact.reason,
        at=now(),
    )


# --- reads ----------------------------------------------------------------------------------------------------------


def get(session: Session, sandbox_id: str, owner_id: str, *, lock: bool = False, deleted: bool = False) -> Sandbox:
    """The owner's sandbox of that id; `deleted`: even if it is deleted.

    Raises:
        NotFound: there is none, it is deleted, or it is somebody else's.
    """
    found = session.scalars(LOCK if lock else FIND, give(sandbox_id=sandbox_id))
    sandbox: Sandbox | None = found.one_or_none()
    if sandbox is None or sandbox.owner_id != owner_id or (sandbox.desired == Desired.DELETED and not deleted):
        raise NotFound("sandbox", sandbox_id)
    return sandbox


def get_many(session: Session, ids: list[str], owner_id: str) -> list[Sandbox | None]:
    """The owner's sandboxes of those ids in order, None where `get` would not find one."""
    statement = select(Sandbox).where(col(Sandbox.id).in_(ids), *_alive(owner_id))
    found = {sandbox.id: sandbox for sandbox in session.exec(statement).all()}
    return [found.get(sandbox_id) for sandbox_id in ids]


def look(database: Database, sandbox_id: str, owner_id: str) -> Sandbox | None:
    """The owner's sandbox of that id as it is now, None where `get` would not find one; it belongs to no session."""
    rows = database.fetch(LOOK, give(sandbox_id=sandbox_id, owner_id=owner_id))
    return make_row(Sandbox, rows[0]) if rows else None


def answered(database: Database, ids: Collection[str]) -> dict[str, Answered]:
    """How far the sandboxes of those ids have got with what is desired of them; without those whose row is gone."""
    found = database.fetch(_observed(rounded(len(ids))), give_several("id", list(ids)))
    return {row_id: Answered(generation, desired) for row_id, generation, desired in found}


def find_wish(database: Database, sandbox_id: str, fence: int) -> WishAsFound | None:
    """What is wished of a sandbox that a worker holds; None: it holds it no more."""
    for row in database.fetch(FIND_WISH, give(sandbox_id=sandbox_id, fence=fence)):
        return WishAsFound(*row)
    return None


def find_by_session_key(session: Session, vault: Vault, key: str) -> Sandbox | None:
    """The sandbox whose agent server holds this session key; the key of a deleted one opens nothing.

    One that is being deleted still reports: its agent server sends its last events before its container goes.
    """
    theirs = col(Sandbox.session_key_digest).in_(vault.digests(key))
    return session.exec(select(Sandbox).where(theirs, Sandbox.status != Status.DELETED)).first()


def transitions(session: Session, sandbox_id: str) -> list[SandboxTransition]:
    """Every move of the sandbox, oldest first."""
    statement = select(SandboxTransition).where(SandboxTransition.sandbox_id == sandbox_id)
    return list(session.exec(statement.order_by(col(SandboxTransition.id))).all())


def list_of_node(session: Session, node_id: str) -> list[Sandbox]:
    """Every sandbox of a node that is not deleted, by id."""
    statement = select(Sandbox).where(Sandbox.node_id == node_id, nodes.is_there())
    return list(session.exec(statement.order_by(col(Sandbox.id))).all())


def on_node(session: Session, node_id: str) -> list[Standing]:
    """How the sandboxes stand that may have something on that node's engine."""
    columns = [getattr(Sandbox, name) for name in Standing._fields]
    found = session.execute(select(*columns).where(Sandbox.node_id == node_id, nodes.is_there()))
    return [Standing(*row) for row in found]


def said_to_run(session: Session, node_id: str, digit: str) -> list[Sandbox]:
    """The node's sandboxes that are RUNNING, whom nobody is at, and whose ids begin with that digit."""
    at_rest = and_(col(Sandbox.due_at).is_(None), col(Sandbox.lease_until).is_(None))
    mine = and_(col(Sandbox.node_id) == node_id, col(Sandbox.id).startswith(digit))
    return list(session.exec(select(Sandbox).where(mine, at_rest, Sandbox.status == Status.RUNNING)).all())


def require_usable(sandbox: Sandbox) -> None:
    """Refuse a sandbox that a conversation can't be started in.

    Raises:
        Invalid: it is in ERROR.
    """
    if sandbox.status == Status.ERROR:
        raise Invalid(f"sandbox {sandbox.id} is in ERROR ({sandbox.reason}): resume or replace it first")


def _alive(owner_id: str) -> tuple[Any, ...]:
    return (Sandbox.owner_id == owner_id, Sandbox.desired != Desired.DELETED)


# --- the statements, made once --------------------------------------------------------------------------------------

FIND = select(Sandbox).where(col(Sandbox.id) == given("sandbox_id"))
LOOK = sql_select(*all_columns(Sandbox)).where(
    col(Sandbox.id) == given("sandbox_id"),
    col(Sandbox.owner_id) == given("owner_id"),
    col(Sandbox.desired) != Desired.DELETED,
)
LOCK = FIND.with_for_update().execution_options(populate_existing=True)
MOVE = insert(SandboxTransition).values(
    {name: given(name) for name in ("sandbox_id", "from_status", "to_status", "pause_kind", "reason", "at")}
)
FIND_WISH = sql_select(*(getattr(Sandbox, name) for name in WishAsFound._fields)).where(
    col(Sandbox.id) == given("sandbox_id"), col(Sandbox.fence) == given("fence")
)


@cache
def _observed(number: int) -> Any:
    columns = (Sandbox.id, Sandbox.observed_generation, Sandbox.desired)
    return select(*columns).where(col(Sandbox.id).in_(several("id", number)))
