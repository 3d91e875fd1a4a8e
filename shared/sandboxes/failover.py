"""Sandboxes of a lost node: told so, moved to another one when their owners resume them, buried if it is given up."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, auto

from sqlalchemy import or_
from sqlmodel import Session, col, select

from shared.clock import now
from shared.leasing import leases, waiters
from shared.leasing.waiters import NOBODY, Waiters
from shared.models import Node, Sandbox, StaleContainer
from shared.nodes import placement
from shared.nodes import registry as node_registry
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.rescheduling import relocate
from shared.sandboxes.status import ObservedState
from shared.states import Desired, Reason, Status


@dataclass(frozen=True)
class Lost:
    """A lost node, by its last heartbeat: with the next one it is back, and nobody moves anything any more."""

    node_id: str
    heartbeat_at: datetime


@dataclass(frozen=True)
class Claimant:
    """Who acts in the lost node's place, as leases have it, and when what it hands out is handed out again."""

    owner: str
    seconds: float
    due_at: datetime


@dataclass(frozen=True)
class FailedOver:
    """What became of one sandbox: what is to wake, the node that it was moved to."""

    woken: Waiters = NOBODY
    moved_to: str | None = None


class Move(StrEnum):
    """What a lost node's sandbox needs."""

    TELL = auto()
    MOVE = auto()
    BURY = auto()


def concerned(session: Session, node_id: str) -> list[str]:
    """The ids of the sandboxes on a lost node that may need something."""
    there = (Sandbox.node_id == node_id, placement.is_there())
    runs = col(Sandbox.status).in_((Status.RUNNING, Status.STARTING))
    unanswered = col(Sandbox.generation) != col(Sandbox.observed_generation)
    forgotten = select(Node.id).where(Node.id == node_id, col(Node.forgotten_at).is_not(None)).exists()
    untold = or_(col(Sandbox.reason).is_distinct_from(Reason.NODE_LOST), col(Sandbox.desired) == Desired.DELETED)
    needy = or_(runs, unanswered, forgotten & untold)
    return list(session.exec(select(Sandbox.id).where(*there, needy).order_by(col(Sandbox.id))).all())


def fail_over(session: Session, lost: Lost, sandbox_id: str, claimant: Claimant) -> FailedOver | None:
    """Do what the sandbox needs, under its lease.

    Returns:
        None if it needs nothing (now), if somebody holds or has locked it, or if there is no room elsewhere.
    """
    # A sandbox that somebody has locked does not keep the others waiting: it is looked at the next time.
    sandbox = session.get(Sandbox, sandbox_id, with_for_update={"skip_locked": True})
    problem = node_registry.lose(session, lost.node_id, lost.heartbeat_at)
    forgotten = session.get_one(Node, lost.node_id).forgotten_at is not None
    if problem is None or sandbox is None or (need := _need(sandbox, lost.node_id, forgotten=forgotten)) is None:
        return None
    node_id = placement.place(session, sandbox.spec_id) if need == Move.MOVE else None
    if need == Move.MOVE and node_id is None:
        return None
    leases.mark_due(session, Sandbox, sandbox_id, now())
    row = leases.claim(session, Sandbox, sandbox_id, claimant.owner, claimant.seconds)
    if row is None:
        return None
    if need == Move.BURY:
        return _tombstone(session, row)
    if node_id is None:
        return _mark_lost(session, row, problem, forgotten=forgotten)
    return _move(session, row, node_id, claimant.due_at)


def _need(sandbox: Sandbox, node_id: str, *, forgotten: bool) -> Move | None:
    if sandbox.node_id != node_id or sandbox.status == Status.DELETED:
        return None
    if sandbox.desired == Desired.DELETED:
        return Move.BURY if forgotten else None
    # A wish that was there when it was told of the loss is carried out when the node is back; one since is an answer.
    new = sandbox.generation not in (sandbox.observed_generation, sandbox.told_generation)
    told = (sandbox.status, sandbox.reason) == (Status.ERROR, Reason.NODE_LOST)
    if told and new and sandbox.desired == Desired.RUNNING:
        return Move.MOVE
    unanswered = sandbox.generation != sandbox.observed_generation
    untrue = sandbox.status in (Status.RUNNING, Status.STARTING) or (forgotten and (unanswered or not told))
    return Move.TELL if new or untrue else None


def _tombstone(session: Session, sandbox: Sandbox) -> FailedOver:
    """Nobody can confirm that it is gone; should the node come back after all, it must be rid of it first."""
    session.merge(StaleContainer(sandbox_id=sandbox.id, node_id=str(sandbox.node_id)))
    if sandbox.status != Status.DELETING:
        sandbox_status.set_status(session, sandbox, ObservedState(Status.DELETING))
    sandbox_status.set_status(session, sandbox, ObservedState(Status.DELETED), observed_generation=sandbox.generation)
    leases.write(session, Sandbox, sandbox.id, sandbox.fence, node_id=None)
    leases.release(session, Sandbox, sandbox.id, sandbox.fence)
    return FailedOver(woken=waiters.enqueue_waiters(session, sandbox.id, now()))


def _mark_lost(session: Session, sandbox: Sandbox, problem: str, *, forgotten: bool) -> FailedOver:
    """Before anything is moved its owner is to know: the files can't come along."""
    hope = "It is not expected back" if forgotten else "It goes on when the node is back"
    words = (
        f"the node {sandbox.node_id} is lost: {problem}. {hope}; a resume before that makes it anew on another node, "
        "and its files are lost then"
    )
    unanswered = sandbox.generation != sandbox.observed_generation and not forgotten
    sandbox_status.set_status(
        session,
        sandbox,
        ObservedState(Status.ERROR, Reason.NODE_LOST, words),
        observed_generation=None if unanswered else sandbox.generation,
    )
    leases.write(session, Sandbox, sandbox.id, sandbox.fence, told_generation=sandbox.generation)
    leases.release(session, Sandbox, sandbox.id, sandbox.fence, retry_at=now() if unanswered else None)
    return FailedOver(woken=waiters.enqueue_waiters(session, sandbox.id, now()))


def _move(session: Session, sandbox: Sandbox, node_id: str, due_at: datetime) -> FailedOver:
    words = f"made anew on the node {node_id}, without the files that were on the lost node {sandbox.node_id}"
    left = StaleContainer(sandbox_id=sandbox.id, node_id=str(sandbox.node_id))
    relocate(session, sandbox, node_id, words, left)
    leases.release(session, Sandbox, sandbox.id, sandbox.fence, retry_at=due_at)
    return FailedOver(moved_to=node_id)
