"""What operators do to a sandbox of any user: retry, pause, delete. Each is a desired state with its audit entry."""

from datetime import datetime
from enum import StrEnum

from sqlmodel import Session

from shared.clock import now
from shared.errors import Conflict, NotFound
from shared.leasing import leases
from shared.models import Sandbox
from shared.queue.jobs import CheckSandbox, DeleteSandbox, Job, PauseSandbox
from shared.sandboxes import desired_state
from shared.sql.statements import get_locked
from shared.states import PAUSING, Desired, Status
from shared.users import audit
from shared.users.audit import Actor
from shared.warm_pool import pool as warm_pool


class SandboxAction(StrEnum):
    """An operator's action on a sandbox."""

    RETRY = "retry"
    PAUSE = "pause"
    DELETE = "delete"


def actions_for(sandbox: Sandbox) -> list[SandboxAction]:
    """The actions that make sense for a sandbox now."""
    if sandbox.status == Status.DELETED:
        return []
    if sandbox.desired == Desired.DELETED:
        return [SandboxAction.RETRY]
    if sandbox.owner_id is None:
        return [SandboxAction.DELETE]
    pause = [] if sandbox.desired in PAUSING else [SandboxAction.PAUSE]
    return [SandboxAction.RETRY, *pause, SandboxAction.DELETE]


def act(session: Session, sandbox_id: str, action: SandboxAction, actor: Actor, *, due_at: datetime) -> Job:
    """Do it, and return the job to enqueue after the commit.

    A retry repeats the desired state: a sandbox in ERROR is tried again, and so is a delete that hangs. It needs no
    quota, since it changes no desired state.

    Args:
        due_at: when the sweep enqueues the row, if the job is lost.

    Raises:
        NotFound: there is no such sandbox.
        Conflict: the sandbox is in no state for it.
    """
    sandbox = get_locked(session, Sandbox, sandbox_id)
    if sandbox is None:
        raise NotFound("sandbox", sandbox_id)
    if action not in actions_for(sandbox):
        raise Conflict(f"{action} does not apply to this sandbox: it is {sandbox.status}, to be {sandbox.desired}")
    audit.record(session, actor, action, sandbox_id)
    match action:
        case SandboxAction.RETRY if sandbox.desired == Desired.DELETED:
            leases.mark_due(session, Sandbox, sandbox_id, now())
        case SandboxAction.RETRY:
            desired_state.set_desired(session, sandbox, Desired(sandbox.desired), due_at=due_at)
        case SandboxAction.PAUSE:
            desired_state.set_desired(session, sandbox, Desired.PAUSED, due_at=due_at)
        case SandboxAction.DELETE if sandbox.owner_id is None:
            warm_pool.retire(session, [sandbox_id], due_at=due_at)
        case SandboxAction.DELETE:
            desired_state.set_desired(session, sandbox, Desired.DELETED, due_at=due_at)
    return JOBS[action](sandbox_id, sandbox.node_id)


JOBS: dict[SandboxAction, type[Job]] = {
    SandboxAction.RETRY: CheckSandbox,
    SandboxAction.PAUSE: PauseSandbox,
    SandboxAction.DELETE: DeleteSandbox,
}
