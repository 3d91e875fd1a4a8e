"""From node to node: a sandbox made anew elsewhere, and what its first node must be rid of."""

from datetime import datetime

from sqlalchemy import delete
from sqlmodel import Session, col, select

from shared.leasing import leases
from shared.models import Sandbox, StaleContainer
from shared.nodes import placement
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.status import ObservedState
from shared.states import Status


def can_be_handed_on(session: Session, sandbox: Sandbox) -> bool:
    """Whether another node has room for a sandbox that its own engine refused, and has not refused it too."""
    return placement.has_room(session, sandbox.spec_id, besides=_tried(session, sandbox))


def hand_on(session: Session, sandbox: Sandbox, refusal: str, *, due_at: datetime) -> str | None:
    """Place a sandbox that its engine refused, and has nothing of, on another node, under the lease the caller holds.

    Returns:
        The node; None if there is none that has room and has not refused it too.

    Raises:
        LeaseLost: another worker owns the sandbox; nothing was written.
    """
    leases.hold(session, Sandbox, sandbox.id, sandbox.fence)
    node_id = placement.place(session, sandbox.spec_id, besides=_tried(session, sandbox))
    if node_id is None:
        return None
    words = f"the node {sandbox.node_id} refused it ({refusal}); tried on the node {node_id}"
    left = StaleContainer(
        sandbox_id=sandbox.id,
        node_id=str(sandbox.node_id),
        refused_generation=sandbox.generation,
        refusal=refusal,
    )
    relocate(session, sandbox, node_id, words, left)
    leases.write(session, Sandbox, sandbox.id, sandbox.fence, attempt=0, due_at=due_at)
    return node_id


def relocate(session: Session, sandbox: Sandbox, node_id: str, words: str, left: StaleContainer) -> None:
    """Let a sandbox be made anew on another node, under the lease the caller holds.

    Args:
        left: what the first node must be rid of, whenever it appears there.
    """
    there = (col(StaleContainer.sandbox_id) == sandbox.id, col(StaleContainer.node_id) == node_id)
    session.execute(delete(StaleContainer).where(*there))
    session.merge(left)
    sandbox_status.set_status(session, sandbox, ObservedState(Status.STARTING, detail=words))
    # Never ready there: should its boot fail, nothing of it is worth keeping.
    leases.write(session, Sandbox, sandbox.id, sandbox.fence, node_id=node_id, ready_at=None)


def _tried(session: Session, sandbox: Sandbox) -> set[str]:
    refused = (
        StaleContainer.sandbox_id == sandbox.id,
        StaleContainer.refused_generation == sandbox.generation,
    )
    return {str(sandbox.node_id), *session.exec(select(StaleContainer.node_id).where(*refused)).all()}
