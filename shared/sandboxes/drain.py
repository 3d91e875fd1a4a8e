"""Drain a node: set the desired state of each of its sandboxes to STOPPED. Their files stay on the node."""

from collections.abc import Collection
from dataclasses import dataclass, field

from sqlmodel import Session, col, select

from shared.clock import now
from shared.models import Sandbox
from shared.sandboxes import desired_state
from shared.sandboxes import queries as sandbox_queries
from shared.sql.statements import get_locked
from shared.states import Desired, PauseKind, Reason, Status


@dataclass
class DrainProgress:
    """The progress of a drain, as the ids of the node's sandboxes."""

    # Sandboxes whose stop or deletion is not reconciled yet.
    awaited: list[str] = field(default_factory=list)
    # Sandboxes that must be stopped, or were resumed since the drain stopped them.
    running: list[str] = field(default_factory=list)
    # Sandboxes without processes: stopped, or in ERROR for another reason than that the node is lost.
    resting: list[str] = field(default_factory=list)


def find_running(session: Session, node_id: str) -> list[Sandbox]:
    """Return the node's sandboxes that are to be stopped, ordered by id."""
    return list(filter(_must_stop, sandbox_queries.list_of_node(session, node_id)))


def stop(session: Session, node_id: str, sandbox_id: str) -> None:
    """Set a sandbox's desired state to STOPPED if it still runs. The sweep of its node's worker enqueues it."""
    sandbox = get_locked(session, Sandbox, sandbox_id)
    if sandbox is not None and sandbox.node_id == node_id and _must_stop(sandbox):
        desired_state.set_desired(session, sandbox, Desired.STOPPED, due_at=now())


def drain_progress(session: Session, node_id: str) -> DrainProgress:
    """Sort the node's sandboxes by how far the drain has got with them."""
    drained = DrainProgress()
    for sandbox in sandbox_queries.list_of_node(session, node_id):
        if _is_stopped(sandbox):
            drained.resting.append(sandbox.id)
        elif _must_stop(sandbox):
            drained.running.append(sandbox.id)
        else:
            drained.awaited.append(sandbox.id)
    return drained


def find_obstacles(session: Session, sandbox_ids: Collection[str]) -> dict[str, str]:
    """Return why a worker has failed to stop or delete these sandboxes so far, by id. The others are left out."""
    failed = (col(Sandbox.attempt) > 0, col(Sandbox.detail).is_not(None))
    found = select(Sandbox.id, Sandbox.reason, Sandbox.detail).where(col(Sandbox.id).in_(sandbox_ids), *failed)
    # The lines after the first one are the container's log.
    why = {sandbox_id: (reason, str(detail).partition("\n")[0]) for sandbox_id, reason, detail in session.exec(found)}
    return {sandbox_id: ": ".join(filter(None, parts)) for sandbox_id, parts in why.items()}


def _must_stop(sandbox: Sandbox) -> bool:
    under_way = sandbox.desired == Desired.STOPPED and not _is_observed(sandbox)
    return not (under_way or sandbox.desired == Desired.DELETED or _is_stopped(sandbox))


def _is_stopped(sandbox: Sandbox) -> bool:
    if sandbox.desired == Desired.DELETED or not _is_observed(sandbox):
        return False
    if sandbox.status == Status.ERROR:
        # The container of a lost node's sandbox may run. STOPPED is observed only if the node was forgotten since.
        return sandbox.reason != Reason.NODE_LOST or sandbox.desired == Desired.STOPPED
    return sandbox.status == Status.PAUSED and sandbox.pause_kind == PauseKind.STOPPED


def _is_observed(sandbox: Sandbox) -> bool:
    return sandbox.generation == sandbox.observed_generation
