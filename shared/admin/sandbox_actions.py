"""Operators' actions on a sandbox of any user: retry, pause, delete. Each sets a desired state, with an audit entry."""

from datetime import datetime
from enum import StrEnum

from sqlmodel import Session

from shared.clock import now
from shared.errors import Conflict, NotFound
from shared.leasing import leases
from shared.models import Sandbox
from shared.queue.jobs import CheckSandbox, DeleteSandbox, Job, PauseSandbox
from shared.sandboxes import desired_state
from shared.sandboxes import status as sandbox_status
from shared.sql.statements import get_locked
from shared.states import PAUSING, Desired, Reason, Status
from shared.users import audit
from shared.users.audit import Actor
from shared.warm_pool import pool as warm_pool


class SandboxAction(StrEnum):
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
    retry = [] if _would_move(sandbox) else [SandboxAction.RETRY]
    pause = [] if sandbox.desired in PAUSING else [SandboxAction.PAUSE]
    return [*retry, *pause, SandboxAction.DELETE]


def act(
    session: Session, sandbox_id: str, action: SandboxAction, actor: Actor, *, due_at: datetime, seen: str = ""
) -> Job:
    """Apply an action, and return the job to enqueue after the commit.

    A retry repeats the desired state of a sandbox in ERROR, or of a stuck delete. It checks no
    quota, since it changes no desired state. A lost node's sandbox has no retry: it would be moved without its files.

    Args:
        due_at: when the sweep enqueues the row, if the job is lost.
        seen: the generation that the operator has seen. A delete needs the current one: what looked like an unused warm
            sandbox, or a failed one, may be in use by now, and a delete can't be undone.

    Raises:
        NotFound: there is no such sandbox.
        Conflict: the action does not apply to the sandbox's state, or the sandbox to delete has changed.
    """
    sandbox = get_locked(session, Sandbox, sandbox_id)
    if sandbox is None:
        raise NotFound("sandbox", sandbox_id)
    if action not in actions_for(sandbox):
        why = "it would lose its files" if _would_move(sandbox) else f"it is {sandbox.status}, to be {sandbox.desired}"
        raise Conflict(f"{action} does not apply to this sandbox: {why}")
    if action == SandboxAction.DELETE and seen != str(sandbox.generation):
        raise Conflict("the sandbox has changed since this page was loaded: go back, load the page again, and look")
    audit.record(session, actor, action, sandbox_id)
    match action:
        case SandboxAction.RETRY if sandbox.desired == Desired.DELETED:
            leases.mark_due(session, Sandbox, sandbox_id, now())
        case SandboxAction.RETRY:
            desired_state.set_desired(session, sandbox, Desired(sandbox.desired), due_at=due_at)
            sandbox_status.restart_failed(session, sandbox_id)
        case SandboxAction.PAUSE:
            desired_state.set_desired(session, sandbox, Desired.PAUSED, due_at=due_at)
        case SandboxAction.DELETE if sandbox.owner_id is None:
            warm_pool.retire(session, [sandbox_id], due_at=due_at)
        case SandboxAction.DELETE:
            desired_state.set_desired(session, sandbox, Desired.DELETED, due_at=due_at)
    return JOBS[action](sandbox_id, sandbox.node_id)


def _would_move(sandbox: Sandbox) -> bool:
    """Whether a repeated desired state recreates the sandbox on another node, without its files. Its owner decides."""
    return (sandbox.desired, sandbox.reason) == (Desired.RUNNING, Reason.NODE_LOST)


JOBS: dict[SandboxAction, type[Job]] = {
    SandboxAction.RETRY: CheckSandbox,
    SandboxAction.PAUSE: PauseSandbox,
    SandboxAction.DELETE: DeleteSandbox,
}
