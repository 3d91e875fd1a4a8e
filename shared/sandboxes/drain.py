"""A node to be emptied of what runs: each of its sandboxes is wished STOPPED, and keeps its files there."""

from dataclasses import dataclass, field

from sqlmodel import Session

from shared.clock import now
from shared.models import Sandbox
from shared.sandboxes import desired_state
from shared.sandboxes import queries as sandbox_queries
from shared.states import Desired, PauseKind, Status


@dataclass
class Drained:
    """How far a node is, by its sandboxes' ids."""

    # Wished to end, and not there yet.
    awaited: list[str] = field(default_factory=list)
    # Resumed since they were wished to stop, or not wished so yet.
    running: list[str] = field(default_factory=list)
    # Nothing of them runs: stopped, or in ERROR.
    resting: list[str] = field(default_factory=list)


def concerned(session: Session, node_id: str) -> list[Sandbox]:
    """The node's sandboxes that are to be stopped, by id."""
    return list(filter(_must_stop, sandbox_queries.list_of_node(session, node_id)))


def stop(session: Session, node_id: str, sandbox_id: str) -> None:
    """Wish a sandbox STOPPED, if that is still to be done; its worker's sweep finds it."""
    sandbox = session.get(Sandbox, sandbox_id, with_for_update=True)
    if sandbox is not None and sandbox.node_id == node_id and _must_stop(sandbox):
        desired_state.set_desired(session, sandbox, Desired.STOPPED, due_at=now())


def drain_progress(session: Session, node_id: str) -> Drained:
    """How far it is."""
    drained = Drained()
    for sandbox in sandbox_queries.list_of_node(session, node_id):
        if _is_at_rest(sandbox):
            drained.resting.append(sandbox.id)
        elif _must_stop(sandbox):
            drained.running.append(sandbox.id)
        else:
            drained.awaited.append(sandbox.id)
    return drained


def _must_stop(sandbox: Sandbox) -> bool:
    under_way = sandbox.desired == Desired.STOPPED and not _is_answered(sandbox)
    return not (under_way or sandbox.desired == Desired.DELETED or _is_at_rest(sandbox))


def _is_at_rest(sandbox: Sandbox) -> bool:
    if sandbox.desired == Desired.DELETED or not _is_answered(sandbox):
        return False
    stopped = sandbox.status == Status.PAUSED and sandbox.pause_kind == PauseKind.STOPPED
    return stopped or sandbox.status == Status.ERROR


def _is_answered(sandbox: Sandbox) -> bool:
    return sandbox.generation == sandbox.observed_generation
