"""Sandboxes that no node had room for, and the nodes that they get as soon as one has."""

from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select

from shared.models import Sandbox
from shared.nodes import placement
from shared.states import Desired


def find(session: Session, limit: int = 100) -> list[str]:
    """The sandboxes that wait for a node and may get one now, oldest first, without a lock."""
    columns: list[Any] = [Sandbox.id, Sandbox.spec_id, Sandbox.desired]
    waiting = select(*columns).where(*_waits()).order_by(col(Sandbox.created_at)).limit(limit)
    found = session.execute(waiting).all()
    room = {spec_id: placement.has_room(session, spec_id) for spec_id in {row.spec_id for row in found}}
    return [row.id for row in found if room[row.spec_id] or row.desired == Desired.DELETED]


def place(session: Session, sandbox_id: str, here: str, *, due_at: datetime) -> str | None:
    """Give the sandbox a node, if it waits for one still and nobody has locked it.

    One that is wished away already needs no room, only a worker: it goes to the node `here`, whatever that has.

    Returns:
        The node; None if it got none.
    """
    waiting = select(Sandbox).where(Sandbox.id == sandbox_id, *_waits())
    sandbox = session.exec(waiting.with_for_update(skip_locked=True)).first()
    if sandbox is None:
        return None
    node_id = here if sandbox.desired == Desired.DELETED else _choose(session, sandbox.spec_id)
    if node_id is not None:
        sandbox.node_id, sandbox.due_at = node_id, due_at
    return node_id


def _choose(session: Session, spec_id: str) -> str | None:
    # Without a lock first: those who place what does have room need not wait for this.
    return placement.place(session, spec_id) if placement.has_room(session, spec_id) else None


def _waits() -> tuple[Any, ...]:
    return (col(Sandbox.node_id).is_(None), placement.is_there())
