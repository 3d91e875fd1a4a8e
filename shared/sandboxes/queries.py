"""Sandboxes: the API's wishes, the workers' facts, and the one door through which `status` changes."""

from collections.abc import Collection
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import and_
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from shared.crypto import Vault
from shared.db.database import Database
from shared.errors import Invalid, NotFound
from shared.models import Sandbox, SandboxTransition
from shared.nodes import placement
from shared.sandboxes.status import is_observed
from shared.sql.prepared import all_columns, give, give_several, given, make_row, rounded
from shared.states import Desired, Status


class ResyncRow(NamedTuple):
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


class ObservedGeneration(NamedTuple):
    """The newest generation of a sandbox's desired state that a worker has reconciled, and the desired state by now."""

    generation: int
    desired: str


class CurrentDesiredState(NamedTuple):
    """What is wished of a sandbox by now."""

    generation: int
    desired: str
    wish_reason: str | None


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


def read_current(database: Database, sandbox_id: str, owner_id: str) -> Sandbox | None:
    """The owner's sandbox of that id as it is now, None where `get` would not find one; it belongs to no session."""
    rows = database.fetch(READ_CURRENT, give(sandbox_id=sandbox_id, owner_id=owner_id))
    return make_row(Sandbox, rows[0]) if rows else None


def observed_generations(database: Database, ids: Collection[str]) -> dict[str, ObservedGeneration]:
    """How far the sandboxes of those ids have got with what is desired of them; without those whose row is gone."""
    found = database.fetch(is_observed(rounded(len(ids))), give_several("id", list(ids)))
    return {row_id: ObservedGeneration(generation, desired) for row_id, generation, desired in found}


def find_desired(database: Database, sandbox_id: str, fence: int) -> CurrentDesiredState | None:
    """What is wished of a sandbox that a worker holds; None: it holds it no more."""
    for row in database.fetch(FIND_DESIRED, give(sandbox_id=sandbox_id, fence=fence)):
        return CurrentDesiredState(*row)
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
    statement = select(Sandbox).where(Sandbox.node_id == node_id, placement.is_there())
    return list(session.exec(statement.order_by(col(Sandbox.id))).all())


def on_node(session: Session, node_id: str) -> list[ResyncRow]:
    """How the sandboxes stand that may have something on that node's engine."""
    columns = [getattr(Sandbox, name) for name in ResyncRow._fields]
    found = session.execute(select(*columns).where(Sandbox.node_id == node_id, placement.is_there()))
    return [ResyncRow(*row) for row in found]


def list_running(session: Session, node_id: str, digit: str) -> list[Sandbox]:
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
READ_CURRENT = sql_select(*all_columns(Sandbox)).where(
    col(Sandbox.id) == given("sandbox_id"),
    col(Sandbox.owner_id) == given("owner_id"),
    col(Sandbox.desired) != Desired.DELETED,
)
LOCK = FIND.with_for_update().execution_options(populate_existing=True)
FIND_DESIRED = sql_select(*(getattr(Sandbox, name) for name in CurrentDesiredState._fields)).where(
    col(Sandbox.id) == given("sandbox_id"), col(Sandbox.fence) == given("fence")
)
