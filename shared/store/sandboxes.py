"""Sandboxes: the API's wishes, the workers' facts, and the one door through which `status` changes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import and_, update
from sqlmodel import Session, col, select

from shared import leases
from shared.clock import now
from shared.crypto import Vault, new_api_key
from shared.errors import IllegalMove, Invalid, NotFound
from shared.models import Sandbox, SandboxSpec, SandboxTransition
from shared.states import MOVES, Desired, PauseKind, Reason, Status
from shared.store import nodes
from shared.store.pages import Order, Page, read_page


@dataclass(frozen=True)
class Fact:
    """What a worker found out about a sandbox."""

    status: Status
    reason: Reason | None = None
    detail: str | None = None
    pause_kind: PauseKind | None = None
    exposed_urls: list[dict[str, Any]] | None = None


# --- wishes ---------------------------------------------------------------------------------------------------------


def create(session: Session, vault: Vault, *, owner_id: str, spec: SandboxSpec, due_at: datetime) -> Sandbox:
    """Wish for a new sandbox, placed on a node if one has room."""
    key = new_api_key()
    sandbox = Sandbox(
        owner_id=owner_id,
        spec_id=spec.id,
        node_id=nodes.place(session),
        desired=Desired.RUNNING,
        status=Status.STARTING,
        session_key=vault.encrypt(key),
        session_key_digest=vault.digest(key),
        due_at=due_at,
    )
    session.add(sandbox)
    session.flush()
    session.add(SandboxTransition(sandbox_id=sandbox.id, to_status=Status.STARTING))
    return sandbox


def wish(session: Session, sandbox: Sandbox, desired: Desired, *, due_at: datetime) -> None:
    """Wish for another state. Wishing for what is wished already is a new wish too: it repairs what has drifted.

    Raises:
        NotFound: the sandbox is deleted, or somebody deleted it at this moment.
    """
    values = {
        "desired": desired,
        "generation": col(Sandbox.generation) + 1,
        "due_at": due_at,
        "updated_at": now(),
    }
    alive = and_(col(Sandbox.id) == sandbox.id, col(Sandbox.desired) != Desired.DELETED)
    statement = update(Sandbox).where(alive).values(**values).execution_options(synchronize_session=False)
    if session.execute(statement).rowcount == 0:  # type: ignore[attr-defined]
        raise NotFound("sandbox", sandbox.id)
    session.refresh(sandbox)


def place_waiting(session: Session, here: str, *, due_at: datetime, limit: int = 100) -> list[tuple[str, str]]:
    """Give nodes to sandboxes that have none yet, oldest first.

    One that is wished away already needs no room, only a hand: it goes to the node `here`, whatever that has.

    Returns:
        The ids of the sandboxes placed now, with their nodes'.
    """
    statement = select(Sandbox).where(*waiting_for_node())
    placed: list[tuple[str, str]] = []
    for sandbox in session.exec(statement.order_by(col(Sandbox.created_at)).limit(limit).with_for_update()).all():
        node_id = here if sandbox.desired == Desired.DELETED else nodes.place(session)
        if node_id is None:
            continue
        sandbox.node_id, sandbox.due_at = node_id, due_at
        session.flush()
        placed.append((sandbox.id, node_id))
    return placed


def waiting_for_node() -> tuple[Any, ...]:
    """What is true of a sandbox that has no node yet."""
    return (col(Sandbox.node_id).is_(None), col(Sandbox.status) != Status.DELETED)


# --- facts ----------------------------------------------------------------------------------------------------------


def move(session: Session, sandbox: Sandbox, fact: Fact, *, observed_generation: int | None = None) -> bool:
    """Write a fact under the lease the caller holds: the one door for `status` (law 6).

    Args:
        sandbox: the row as claimed, detached from its session; its `fence` is shown. It is brought up to date.
        fact: what is so now.
        observed_generation: the wish this fact answers; None while it is still being carried out.

    Returns:
        Whether the status changed.

    Raises:
        LeaseLost: another worker owns the row now; nothing was written.
        IllegalMove: the table of moves does not have this one; nothing was written.
    """
    before = Status(sandbox.status)
    if fact.status != before and fact.status not in MOVES[before]:
        raise IllegalMove(f"sandbox {sandbox.id}: {before} → {fact.status}")
    columns = _columns(sandbox, fact, observed_generation)
    leases.write(session, Sandbox, sandbox.id, sandbox.fence, **columns)
    for name, value in columns.items():
        setattr(sandbox, name, value)
    if fact.status == before:
        return False
    session.add(SandboxTransition(sandbox_id=sandbox.id, from_status=before, to_status=fact.status, reason=fact.reason))
    return True


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


# --- reads ----------------------------------------------------------------------------------------------------------


def get(session: Session, sandbox_id: str, owner_id: str, *, lock: bool = False) -> Sandbox:
    """The owner's sandbox of that id.

    Raises:
        NotFound: there is none, it is deleted, or it is somebody else's.
    """
    sandbox = session.get(Sandbox, sandbox_id, with_for_update=lock or None)
    if sandbox is None or sandbox.owner_id != owner_id or sandbox.desired == Desired.DELETED:
        raise NotFound("sandbox", sandbox_id)
    return sandbox


def get_many(session: Session, ids: list[str], owner_id: str) -> list[Sandbox | None]:
    """The owner's sandboxes of those ids in order, None where `get` would not find one."""
    statement = select(Sandbox).where(col(Sandbox.id).in_(ids), *_alive(owner_id))
    found = {sandbox.id: sandbox for sandbox in session.exec(statement).all()}
    return [found.get(sandbox_id) for sandbox_id in ids]


def search(session: Session, owner_id: str, page_id: str | None, limit: int) -> Page[Sandbox]:
    """A page of the owner's sandboxes, newest first."""
    order = Order(col(Sandbox.created_at), col(Sandbox.id), descending=True)
    return read_page(session, select(Sandbox).where(*_alive(owner_id)), order, page_id, limit)


def find_by_session_key(session: Session, vault: Vault, key: str) -> Sandbox | None:
    """The sandbox whose agent server holds this session key, whatever its state."""
    statement = select(Sandbox).where(col(Sandbox.session_key_digest).in_(vault.digests(key)))
    return session.exec(statement).first()


def transitions(session: Session, sandbox_id: str) -> list[SandboxTransition]:
    """Every move of the sandbox, oldest first."""
    statement = select(SandboxTransition).where(SandboxTransition.sandbox_id == sandbox_id)
    return list(session.exec(statement.order_by(col(SandboxTransition.id))).all())


def on_node(session: Session, node_id: str) -> list[Sandbox]:
    """The sandboxes that may have something on that node's engine."""
    statement = select(Sandbox).where(Sandbox.node_id == node_id, Sandbox.status != Status.DELETED)
    return list(session.exec(statement).all())


def require_usable(sandbox: Sandbox) -> None:
    """Refuse a sandbox that a conversation can't be started in.

    Raises:
        Invalid: it is in ERROR.
    """
    if sandbox.status == Status.ERROR:
        raise Invalid(f"sandbox {sandbox.id} is in ERROR ({sandbox.reason}): resume or replace it first")


def _alive(owner_id: str) -> tuple[Any, ...]:
    return (Sandbox.owner_id == owner_id, Sandbox.desired != Desired.DELETED)
