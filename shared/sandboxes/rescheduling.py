"""Reschedule a sandbox to another node, and track the stale container on its first node."""

from datetime import datetime
from typing import Any

from sqlalchemy import delete
from sqlmodel import Session, col, select

from shared.leasing import leases
from shared.models import Sandbox, StaleContainer
from shared.nodes import placement
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.status import ObservedState
from shared.states import Status


def can_be_rescheduled(session: Session, sandbox: Sandbox) -> bool:
    """Whether another node has room for a sandbox that its engine failed to run, and has not failed to run it too."""
    return placement.has_room(session, sandbox.spec_id, excluded=_tried(session, sandbox))


def reschedule(session: Session, sandbox: Sandbox, failure: str, *, due_at: datetime) -> str | None:
    """Reschedule a sandbox that its engine failed to create to another node, under the caller's lease.

    Returns:
        The id of the node. None if no node has room that has not failed to run the sandbox too.

    Raises:
        LeaseLost: another worker owns the sandbox; nothing was written.
    """
    leases.lock_leased(session, Sandbox, sandbox.id, sandbox.fence)
    node_id = placement.place(session, sandbox.spec_id, excluded=_tried(session, sandbox))
    if node_id is None:
        return None
    detail = f"the node {sandbox.node_id} failed to create it ({failure}); rescheduled to the node {node_id}"
    stale = StaleContainer(
        sandbox_id=sandbox.id,
        node_id=str(sandbox.node_id),
        refused_generation=sandbox.generation,
        refusal=failure,
    )
    relocate(session, sandbox, node_id, detail, stale)
    leases.write(session, Sandbox, sandbox.id, sandbox.fence, due_at=due_at)
    return node_id


def relocate(session: Session, sandbox: Sandbox, node_id: str, detail: str, stale: StaleContainer) -> None:
    """Have a sandbox recreated on another node, under the caller's lease.

    Args:
        stale: the container that the first node must remove, whenever it appears there.
    """
    on_new_node = (col(StaleContainer.sandbox_id) == sandbox.id, col(StaleContainer.node_id) == node_id)
    session.execute(delete(StaleContainer).where(*on_new_node))
    session.merge(stale)
    sandbox_status.set_status(session, sandbox, ObservedState(Status.STARTING, detail=detail))
    # The sandbox was never ready on the new node: a failed boot there leaves nothing worth keeping. An owner's sandbox
    # boots for its owner there. Its container is not one of the warm pool, which may be another's.
    boot_key = sandbox.boot_key if sandbox.owner_id is None else None
    columns: dict[str, Any] = {"node_id": node_id, "ready_at": None, "boot_key": boot_key, "attempt": 0}
    leases.write(session, Sandbox, sandbox.id, sandbox.fence, **columns)


def _tried(session: Session, sandbox: Sandbox) -> set[str]:
    failed = (
        StaleContainer.sandbox_id == sandbox.id,
        StaleContainer.refused_generation == sandbox.generation,
    )
    return {str(sandbox.node_id), *session.exec(select(StaleContainer.node_id).where(*failed)).all()}
