"""Sandboxes of a lost node: told so, and moved to another one when their owners resume them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum, auto

from sqlalchemy import delete, or_
from sqlmodel import Session, col, select

from shared import leases
from shared.clock import now
from shared.models import Sandbox, SandboxLeftover
from shared.states import Desired, Reason, Status
from shared.store import nodes, sandboxes, start_tasks
from shared.store.sandboxes import Fact


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
class Evacuated:
    """What became of one sandbox: the start tasks to wake, the node that it was moved to."""

    woken: tuple[str, ...] = ()
    moved_to: str | None = None


class Move(StrEnum):
    """What a lost node's sandbox needs."""

    TELL = auto()
    MOVE = auto()


def concerned(session: Session, node_id: str) -> list[str]:
    """The ids of the sandboxes on a lost node that are not what their rows say, or can't become what is wished."""
    runs = col(Sandbox.status).in_((Status.RUNNING, Status.STARTING))
    unanswered = col(Sandbox.generation) != col(Sandbox.observed_generation)
    alive = (Sandbox.node_id == node_id, Sandbox.desired != Desired.DELETED, Sandbox.status != Status.DELETED)
    return list(session.exec(select(Sandbox.id).where(*alive, or_(runs, unanswered)).order_by(col(Sandbox.id))).all())


def evacuate(session: Session, lost: Lost, sandbox_id: str, claimant: Claimant) -> Evacuated | None:
    """Do what the sandbox needs, under its lease.

    Returns:
        None if it needs nothing (now), if somebody holds it, or if there is no room elsewhere.
    """
    problem = nodes.lose(session, lost.node_id, lost.heartbeat_at)
    sandbox = session.get(Sandbox, sandbox_id, with_for_update=True)
    if problem is None or sandbox is None or (need := _need(sandbox, lost.node_id)) is None:
        return None
    node_id = nodes.place(session) if need == Move.MOVE else None
    if need == Move.MOVE and node_id is None:
        return None
    leases.mark_due(session, Sandbox, sandbox_id, now())
    row = leases.claim(session, Sandbox, sandbox_id, claimant.owner, claimant.seconds)
    if row is None:
        return None
    session.expunge(row)
    if node_id is None:
        return _tell(session, row, problem)
    return _move(session, row, node_id, claimant.due_at)


def _need(sandbox: Sandbox, node_id: str) -> Move | None:
    if sandbox.node_id != node_id or sandbox.desired == Desired.DELETED or sandbox.status == Status.DELETED:
        return None
    fresh = sandbox.generation != sandbox.observed_generation
    told = (sandbox.status, sandbox.reason) == (Status.ERROR, Reason.NODE_LOST)
    if told and fresh and sandbox.desired == Desired.RUNNING:
        return Move.MOVE
    return Move.TELL if fresh or sandbox.status in (Status.RUNNING, Status.STARTING) else None


def _tell(session: Session, sandbox: Sandbox, problem: str) -> Evacuated:
    """Before anything is moved its owner is to know: the files can't come along."""
    words = (
        f"the node {sandbox.node_id} is lost: {problem}. It goes on when the node is back; a resume before that "
        "makes it anew on another node, and its files are lost then"
    )
    sandboxes.move(
        session, sandbox, Fact(Status.ERROR, Reason.NODE_LOST, words), observed_generation=sandbox.generation
    )
    leases.release(session, Sandbox, sandbox.id, sandbox.fence)
    return Evacuated(woken=tuple(start_tasks.wake(session, sandbox.id, now())))


def _move(session: Session, sandbox: Sandbox, node_id: str, due_at: datetime) -> Evacuated:
    words = f"made anew on the node {node_id}, without the files that were on the lost node {sandbox.node_id}"
    session.execute(
        delete(SandboxLeftover).where(
            col(SandboxLeftover.sandbox_id) == sandbox.id, col(SandboxLeftover.node_id) == node_id
        )
    )
    session.merge(SandboxLeftover(sandbox_id=sandbox.id, node_id=str(sandbox.node_id)))
    sandboxes.move(session, sandbox, Fact(Status.STARTING, detail=words))
    # Never ready there: should its boot fail, nothing of it is worth keeping.
    leases.write(session, Sandbox, sandbox.id, sandbox.fence, node_id=node_id, ready_at=None)
    leases.release(session, Sandbox, sandbox.id, sandbox.fence, retry_at=due_at)
    return Evacuated(moved_to=node_id)
