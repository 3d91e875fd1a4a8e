"""Fail over the sandboxes of a lost node: mark lost, move on resume, tombstone if the node is abandoned."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, auto

from sqlalchemy import or_
from sqlmodel import Session, col, select

from shared.clock import now
from shared.leasing import leases, waiters
from shared.leasing.waiters import NO_WAITERS, Waiters
from shared.models import Node, Sandbox, StaleContainer
from shared.nodes import placement
from shared.nodes import registry as node_registry
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.rescheduling import relocate
from shared.sandboxes.status import ObservedState
from shared.sql.statements import get_locked
from shared.states import Desired, Reason, Status

WHEN_BACK = (
    "When the node is back, the sandbox continues; if the machine was restarted, a resume then boots it on its files"
)

# How the detail of a lost node's sandbox begins once the node is back, and its desired state is still pending.
IS_BACK = "the node was lost, and is back"


@dataclass(frozen=True)
class LostNode:
    """A lost node and its last heartbeat. With the next heartbeat the node is back, and its sandboxes stay there."""

    node_id: str
    heartbeat_at: datetime


@dataclass(frozen=True)
class LeaseRequest:
    """The lease to claim: its owner, its length in seconds, and when the sweep resends a lost job."""

    owner: str
    seconds: float
    due_at: datetime


@dataclass(frozen=True)
class FailedOver:
    """The outcome for one sandbox: the waiters to enqueue, and the node that it was moved to."""

    woken: Waiters = NO_WAITERS
    moved_to: str | None = None


class FailoverAction(StrEnum):
    """The action that a lost node's sandbox needs."""

    MARK_LOST = auto()
    MOVE = auto()
    TOMBSTONE = auto()


def find_actionable(session: Session, node_id: str) -> list[str]:
    """Return the ids of the sandboxes on a lost node that need an action now, and can be moved if that is the action.

    The others wait for their node or for room, and cost no transaction each.
    """
    is_abandoned = session.get_one(Node, node_id).forgotten_at is not None
    rows = [(row, _action_for(row, node_id, is_abandoned)) for row in _candidates(session, node_id, is_abandoned)]
    specs = {row.spec_id for row, action in rows if action == FailoverAction.MOVE}
    full = {spec_id for spec_id in specs if not placement.has_room(session, spec_id)}
    waits = {row.id for row, action in rows if action == FailoverAction.MOVE and row.spec_id in full}
    return [row.id for row, action in rows if action is not None and row.id not in waits]


def fail_over(session: Session, lost: LostNode, sandbox_id: str, lease: LeaseRequest) -> FailedOver | None:
    """Take the action that the sandbox needs, under its lease.

    Returns:
        None if no action is needed now, if the row is leased or locked, or if no other node has room.
    """
    # A locked sandbox does not delay the others: the next sweep retries it.
    sandbox = get_locked(session, Sandbox, sandbox_id, skip_locked=True)
    # All workers of a cluster detect the loss at the same time: those who come too late do not wait for the node's row.
    if sandbox is None or _find_action(session, sandbox, lost.node_id) is None:
        return None
    problem = node_registry.mark_lost(session, lost.node_id, lost.heartbeat_at)
    # The node may have been forgotten since.
    is_abandoned = session.get_one(Node, lost.node_id).forgotten_at is not None
    action = None if problem is None else _action_for(sandbox, lost.node_id, is_abandoned)
    node_id = placement.place(session, sandbox.spec_id) if action == FailoverAction.MOVE else None
    if problem is None or action is None or (action == FailoverAction.MOVE and node_id is None):
        return None
    leases.mark_due(session, Sandbox, sandbox_id, now())
    row = leases.claim(session, Sandbox, sandbox_id, lease.owner, lease.seconds)
    if row is None:
        return None
    if action == FailoverAction.TOMBSTONE:
        return _tombstone(session, row)
    if node_id is None:
        return _mark_lost(session, row, problem, is_abandoned=is_abandoned)
    return _move(session, row, node_id, lease.due_at)


def _find_action(session: Session, sandbox: Sandbox, node_id: str) -> FailoverAction | None:
    """Return the action that the sandbox needs, read without a lock on its node."""
    return _action_for(sandbox, node_id, session.get_one(Node, node_id).forgotten_at is not None)


def _candidates(session: Session, node_id: str, is_abandoned: bool) -> Sequence[Sandbox]:
    runs = col(Sandbox.status).in_((Status.RUNNING, Status.STARTING))
    is_pending = col(Sandbox.generation) != col(Sandbox.observed_generation)
    not_marked = or_(col(Sandbox.reason).is_distinct_from(Reason.NODE_LOST), col(Sandbox.desired) == Desired.DELETED)
    may_need = or_(runs, is_pending, not_marked) if is_abandoned else or_(runs, is_pending)
    on_node = select(Sandbox).where(Sandbox.node_id == node_id, placement.may_have_container(), may_need)
    return session.exec(on_node.order_by(col(Sandbox.id))).all()


def _action_for(sandbox: Sandbox, node_id: str, is_abandoned: bool) -> FailoverAction | None:
    if sandbox.node_id != node_id or sandbox.status == Status.DELETED:
        return None
    if sandbox.desired == Desired.DELETED:
        return FailoverAction.TOMBSTONE if is_abandoned else None
    # A desired state that was set before the loss was marked is reconciled when the node is back. A later one is a
    # decision of the owner, who knew of the loss.
    is_new = sandbox.generation not in (sandbox.observed_generation, sandbox.lost_generation)
    is_marked = _is_marked(sandbox)
    if is_marked and is_new and sandbox.desired == Desired.RUNNING:
        return FailoverAction.MOVE
    is_pending = sandbox.generation != sandbox.observed_generation
    runs = sandbox.status in (Status.RUNNING, Status.STARTING)
    is_outdated = runs or (is_pending and not is_marked) or (is_abandoned and (is_pending or not is_marked))
    return FailoverAction.MARK_LOST if is_new or is_outdated else None


def _is_marked(sandbox: Sandbox) -> bool:
    """Whether the owner reads that the node is lost, and has not been back since."""
    is_lost = (sandbox.status, sandbox.reason) == (Status.ERROR, Reason.NODE_LOST)
    return is_lost and not (sandbox.detail or "").startswith(IS_BACK)


def _tombstone(session: Session, sandbox: Sandbox) -> FailedOver:
    # No worker can confirm the removal: should the node come back after all, it must remove the container first.
    session.merge(StaleContainer(sandbox_id=sandbox.id, node_id=str(sandbox.node_id)))
    if sandbox.status != Status.DELETING:
        sandbox_status.set_status(session, sandbox, ObservedState(Status.DELETING))
    sandbox_status.set_status(session, sandbox, ObservedState(Status.DELETED), observed_generation=sandbox.generation)
    leases.write(session, Sandbox, sandbox.id, sandbox.fence, node_id=None)
    leases.release(session, Sandbox, sandbox.id, sandbox.fence)
    return FailedOver(woken=waiters.enqueue_waiters(session, sandbox.id, now()))


def _mark_lost(session: Session, sandbox: Sandbox, problem: str, *, is_abandoned: bool) -> FailedOver:
    # The owner must know before a move that the files can't be moved.
    outlook = "It is not expected back" if is_abandoned else WHEN_BACK
    detail = (
        f"the node {sandbox.node_id} is lost: {problem}. {outlook}; a resume before that recreates the sandbox on "
        "another node, and its files are lost then"
    )
    is_pending = sandbox.generation != sandbox.observed_generation and not is_abandoned
    sandbox_status.set_status(
        session,
        sandbox,
        ObservedState(Status.ERROR, Reason.NODE_LOST, detail),
        observed_generation=None if is_pending else sandbox.generation,
    )
    leases.write(session, Sandbox, sandbox.id, sandbox.fence, lost_generation=sandbox.generation)
    leases.release(session, Sandbox, sandbox.id, sandbox.fence, retry_at=now() if is_pending else None)
    return FailedOver(woken=waiters.enqueue_waiters(session, sandbox.id, now()))


def _move(session: Session, sandbox: Sandbox, node_id: str, due_at: datetime) -> FailedOver:
    detail = f"recreated on the node {node_id}, without the files that were on the lost node {sandbox.node_id}"
    stale = StaleContainer(sandbox_id=sandbox.id, node_id=str(sandbox.node_id))
    relocate(session, sandbox, node_id, detail, stale)
    leases.release(session, Sandbox, sandbox.id, sandbox.fence, retry_at=due_at)
    return FailedOver(moved_to=node_id)
