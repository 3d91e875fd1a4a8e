"""Reads of sandboxes, for the API and the workers."""

from collections.abc import Collection, Sequence
from datetime import datetime
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Select
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from shared.crypto import Vault
from shared.db.database import Database
from shared.errors import Invalid, NotFound
from shared.models import Sandbox, SandboxTransition
from shared.nodes import placement
from shared.sandboxes.status import MAX_TRANSITIONS, is_observed
from shared.sql.statements import all_columns, bind, bind_list, bind_list_values, bind_values, locked, make_row, rounded
from shared.states import PAUSING, Desired, Reason, Status
from shared.users.api_keys import find_by_keys


class ResyncRow(NamedTuple):
    """The columns that a resync compares with a container. Read for a whole node every few seconds."""

    id: str
    desired: str
    generation: int
    observed_generation: int
    status: str
    reason: str | None
    pause_kind: str | None
    ready_at: datetime | None
    due_at: datetime | None
    lease_until: datetime | None
    status_changed_at: datetime
    last_active_at: datetime
    deadline_at: datetime | None


class ObservedGeneration(NamedTuple):
    """The newest generation of a sandbox's desired state that a worker has reconciled, and its desired state now."""

    generation: int
    desired: str


def get(session: Session, sandbox_id: str, owner_id: str, *, lock: bool = False, deleted: bool = False) -> Sandbox:
    """Return the owner's sandbox of that id.

    Args:
        lock: lock the row until the transaction ends.
        deleted: return the sandbox even if it is deleted.

    Raises:
        NotFound: there is no such sandbox, it is deleted, or it belongs to another user.
    """
    found = session.scalars(LOCK if lock else FIND, bind_values(sandbox_id=sandbox_id))
    sandbox: Sandbox | None = found.one_or_none()
    if sandbox is None or sandbox.owner_id != owner_id or (sandbox.desired == Desired.DELETED and not deleted):
        raise NotFound("sandbox", sandbox_id)
    return sandbox


def lock(session: Session, sandbox_id: str) -> Sandbox:
    """Return a sandbox of any owner, locked until the transaction ends: no other one can refer to it."""
    sandbox: Sandbox = session.scalars(LOCK, bind_values(sandbox_id=sandbox_id)).one()
    return sandbox


def get_many(session: Session, ids: list[str], owner_id: str) -> list[Sandbox | None]:
    """Return the owner's sandboxes in the order of `ids`, with None where `get` would not find one."""
    mine = (Sandbox.owner_id == owner_id, Sandbox.desired != Desired.DELETED)
    statement = select(Sandbox).where(col(Sandbox.id).in_(ids), *mine)
    found = {sandbox.id: sandbox for sandbox in session.exec(statement).all()}
    return [found.get(sandbox_id) for sandbox_id in ids]


def read_current(database: Database, sandbox_id: str, owner_id: str) -> Sandbox | None:
    """Return the owner's current sandbox, detached from any session, or None where `get` would not find one."""
    rows = database.fetch(READ_CURRENT, bind_values(sandbox_id=sandbox_id, owner_id=owner_id))
    return make_row(Sandbox, rows[0]) if rows else None


def observed_generations(database: Database, ids: Collection[str]) -> dict[str, ObservedGeneration]:
    """Return the newest reconciled generation by sandbox id. Ids without a row are left out."""
    found = database.fetch(is_observed(rounded(len(ids))), bind_list_values("id", list(ids)))
    return {row_id: ObservedGeneration(generation, desired) for row_id, generation, desired in found}


def find_by_session_key(session: Session, vault: Vault, key: str) -> Sandbox | None:
    """Return the sandbox with this session key. The key of a deleted sandbox is not accepted.

    A sandbox that is being deleted still reports: its agent server sends its last events before its container stops.
    """
    matches = col(Sandbox.session_key_digest).in_(vault.digests(key))
    return session.exec(select(Sandbox).where(matches, Sandbox.status != Status.DELETED)).first()


def find_by_session_keys(database: Database, vault: Vault, keys: Sequence[str]) -> list[Sandbox | None]:
    """Return the sandbox of each key as `find_by_session_key` does, detached from any session. One query finds all."""
    found = find_by_keys(database, vault, keys, _with_session_keys)
    return [make_row(Sandbox, rows[0]) if rows else None for rows in found]


def transitions(session: Session, sandbox_id: str) -> list[SandboxTransition]:
    """Return the newest status transitions of the sandbox, oldest first."""
    statement = select(SandboxTransition).where(SandboxTransition.sandbox_id == sandbox_id)
    newest_first = statement.order_by(col(SandboxTransition.id).desc()).limit(MAX_TRANSITIONS)
    return list(reversed(session.exec(newest_first).all()))


def list_of_node(session: Session, node_id: str) -> list[Sandbox]:
    """Return the sandboxes of a node that are not deleted, ordered by id."""
    statement = select(Sandbox).where(Sandbox.node_id == node_id, placement.may_have_container())
    return list(session.exec(statement.order_by(col(Sandbox.id))).all())


def on_node(session: Session, node_id: str) -> list[ResyncRow]:
    """Return the resync columns of the sandboxes that may have a container or volume on that node's engine."""
    columns = [getattr(Sandbox, name) for name in ResyncRow._fields]
    found = session.execute(select(*columns).where(Sandbox.node_id == node_id, placement.may_have_container()))
    return [ResyncRow(*row) for row in found]


def accountable(session: Session, ids: Collection[str]) -> dict[str, str]:
    """Return statuses by sandbox id, except of sandboxes whose names other containers use (decision 47)."""
    owns_name = col(Sandbox.reason).is_distinct_from(Reason.ALREADY_USED)
    known = select(Sandbox.id, Sandbox.status).where(col(Sandbox.id).in_(ids), owns_name)
    return dict(session.exec(known).all()) if ids else {}


def list_running(session: Session, node_id: str, digit: str) -> list[Sandbox]:
    """Return the node's RUNNING sandboxes whose ids begin with `digit`."""
    return list(session.scalars(FIND_RUNNING, bind_values(node_id=node_id, digit=digit)).all())


def find_unplaced_pauses(session: Session, limit: int = 100) -> Sequence[str]:
    """Return the ids of the sandboxes without a node that are to be paused or stopped, read without locks."""
    unplaced = (col(Sandbox.node_id).is_(None), placement.may_have_container(), col(Sandbox.desired).in_(PAUSING))
    found = select(Sandbox.id).where(*unplaced, col(Sandbox.generation) != col(Sandbox.observed_generation))
    return session.exec(found.limit(limit)).all()


def require_usable(sandbox: Sandbox) -> None:
    """Check that a conversation can be started in a sandbox.

    Raises:
        Invalid: the sandbox is in ERROR.
    """
    if sandbox.status == Status.ERROR:
        raise Invalid(f"sandbox {sandbox.id} is in ERROR ({sandbox.reason}): resume or replace it first")


# --- prepared statements --------------------------------------------------------------------------------------------

FIND = select(Sandbox).where(col(Sandbox.id) == bind("sandbox_id"))
READ_CURRENT = sql_select(*all_columns(Sandbox)).where(
    col(Sandbox.id) == bind("sandbox_id"),
    col(Sandbox.owner_id) == bind("owner_id"),
    col(Sandbox.desired) != Desired.DELETED,
)
LOCK = locked(FIND)
FIND_RUNNING = select(Sandbox).where(
    col(Sandbox.node_id) == bind("node_id"),
    # With this condition the query uses its index: SQLite does not derive it from the status.
    placement.may_have_container(),
    col(Sandbox.id).startswith(bind("digit")),
    Sandbox.status == Status.RUNNING,
)


@cache
def _with_session_keys(digests: int) -> Select[Any]:
    digest = col(Sandbox.session_key_digest)
    found = sql_select(digest.label("digest"), *all_columns(Sandbox))
    return found.where(digest.in_(bind_list("digest", digests)), col(Sandbox.status) != Status.DELETED)
