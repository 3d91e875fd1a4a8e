"""Quarantine of containers and volumes unknown to the store: removed late, many only if approved (decision 47)."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta

from sqlalchemy import ColumnElement, func
from sqlmodel import Session, col, select
from sqlmodel.sql.expression import SelectOfScalar

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.errors import LeaseLost, NotFound
from shared.models import Node, Sandbox, UnknownContainer
from shared.sandboxes import deadlines
from shared.sandboxes.desired_state import new_generation
from shared.sql.statements import count_written, locked, unchanged
from shared.states import Desired, Reason

# More unknown containers than this at one engine need an operator's approval: the store was probably restored.
MAX_UNCONFIRMED = 3


def find(session: Session, node_id: str | None = None) -> Sequence[UnknownContainer]:
    """Return the containers in quarantine, of one node or of all but forgotten ones, ordered by node and name."""
    found = select(UnknownContainer).order_by(col(UnknownContainer.node_id), col(UnknownContainer.name))
    here = _is_not_forgotten() if node_id is None else col(UnknownContainer.node_id) == node_id
    return session.exec(found.where(here)).all()


def count(session: Session) -> dict[str, int]:
    """Count the containers in quarantine by node. Nodes without any, and forgotten ones, are left out."""
    counted = select(UnknownContainer.node_id, func.count()).where(_is_not_forgotten())
    return dict(session.exec(counted.group_by(col(UnknownContainer.node_id))).all())


def keep(session: Session, node_id: str, names: Collection[str]) -> None:
    """Store which containers are unknown at a node now.

    New ones enter quarantine. Those that no longer exist leave it.
    """
    rows = {row.name: row for row in session.exec(locked(_of_node(node_id)))}
    for name, row in rows.items():
        if name not in names:
            session.delete(row)
    for name in sorted(set(names) - rows.keys()):
        session.add(UnknownContainer(node_id=node_id, name=name))
    session.flush()
    if len(names) > MAX_UNCONFIRMED:
        for row in session.exec(_of_node(node_id)):
            row.one_of_many = True


def delete_sandbox_row(session: Session, sandbox: Sandbox, *, due_at: datetime) -> None:
    """Delete a row whose container has been used without the store's knowledge. The worker keeps the container.

    A tombstone does not account for a container, so the worker puts the container and its volume into quarantine.

    Args:
        sandbox: the row as the caller leased it.
        due_at: when the sweep enqueues the row, if its job is lost.

    Raises:
        LeaseLost: another worker owns the row, or its desired state has changed.
    """
    as_leased = unchanged(Sandbox, id=sandbox.id, fence=sandbox.fence, generation=sandbox.generation)
    ended = new_generation(Desired.DELETED, as_leased, due_at=due_at, at=now(), reason=Reason.ALREADY_USED)
    if not count_written(session, ended):
        raise LeaseLost(f"sandbox {sandbox.id}: the lease with fence {sandbox.fence} is lost")
    change_recorder.record_change(session, deadlines.refresh(session, sandbox.id))


def may_be_removed(row: UnknownContainer, kept_for: timedelta) -> bool:
    """Whether a container may be removed.

    An operator has approved it, or it is one of a few and has been in quarantine for `kept_for`.
    """
    return row.approved_at is not None or (not row.one_of_many and row.first_seen_at <= now() - kept_for)


def approve(session: Session, node_id: str, names: Collection[str]) -> None:
    """Let the node's worker remove these containers immediately.

    Raises:
        NotFound: one of the names is not in quarantine at that node.
    """
    # Lock in the order of `keep`.
    found = session.exec(locked(_of_node(node_id).where(col(UnknownContainer.name).in_(names))))
    rows = {row.name: row for row in found}
    for name in names:
        if name not in rows:
            raise NotFound("unknown container", name, by="name")
        rows[name].approved_at = now()


def _is_not_forgotten() -> ColumnElement[bool]:
    """Build the condition for containers of nodes whose workers could remove them."""
    forgotten = select(Node.id).where(col(Node.forgotten_at).is_not(None))
    return col(UnknownContainer.node_id).not_in(forgotten)


def _of_node(node_id: str) -> SelectOfScalar[UnknownContainer]:
    return select(UnknownContainer).where(UnknownContainer.node_id == node_id).order_by(col(UnknownContainer.name))
