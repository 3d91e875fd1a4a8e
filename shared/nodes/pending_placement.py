"""Sandboxes without a node: placed as soon as a node has room."""

from datetime import datetime
from typing import Any

from sqlmodel import Session, col, select

from shared.models import Sandbox
from shared.nodes import placement
from shared.states import Desired


def find(session: Session, limit: int = 100) -> list[str]:
    """Return the ids of the sandboxes that can be placed now, oldest first, read without locks."""
    columns: list[Any] = [Sandbox.id, Sandbox.spec_id, Sandbox.desired]
    waiting = select(*columns).where(*_waits()).order_by(col(Sandbox.created_at)).limit(limit)
    found = session.execute(waiting).all()
    room = {spec_id: placement.has_room(session, spec_id) for spec_id in {row.spec_id for row in found}}
    return [row.id for row in found if room[row.spec_id] or row.desired == Desired.DELETED]


def place(session: Session, sandbox_id: str, own_node_id: str, *, due_at: datetime) -> str | None:
    """Place the sandbox on a node, if it still has none and no other transaction has locked it.

    A sandbox to be deleted needs no room, only a worker: it goes to `own_node_id`, even if that node is full.

    Args:
        own_node_id: the node of the calling worker.

    Returns:
        The id of the node; None if the sandbox was not placed.
    """
    waiting = select(Sandbox).where(Sandbox.id == sandbox_id, *_waits())
    sandbox = session.exec(waiting.with_for_update(skip_locked=True)).first()
    if sandbox is None:
        return None
    node_id = own_node_id if sandbox.desired == Desired.DELETED else _choose(session, sandbox.spec_id)
    if node_id is not None:
        sandbox.node_id, sandbox.due_at = node_id, due_at
    return node_id


def _choose(session: Session, spec_id: str) -> str | None:
    # Check without a lock first, so that placements of other specs don't wait for this one.
    return placement.place(session, spec_id) if placement.has_room(session, spec_id) else None


def _waits() -> tuple[Any, ...]:
    return (col(Sandbox.node_id).is_(None), placement.is_there())
