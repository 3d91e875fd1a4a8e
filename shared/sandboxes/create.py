"""Create the row of a sandbox, and set its own deadlines."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from sqlmodel import Session

from shared.changes import recorder as change_recorder
from shared.clock import now
from shared.crypto import Vault, new_api_key
from shared.models import Sandbox, SandboxSpec
from shared.nodes import placement
from shared.sandboxes import deadlines, specs
from shared.sandboxes import status as sandbox_status
from shared.states import Desired


def create(
    session: Session,
    vault: Vault,
    *,
    owner_id: str | None,
    spec: SandboxSpec,
    due_at: datetime,
    own_deadlines: Mapping[str, int | None] | None = None,
    besides: Collection[str] = frozenset(),
) -> Sandbox:
    """Add a sandbox whose desired state is RUNNING, placed on a node if one has room.

    Args:
        owner_id: None makes a warm sandbox, which boots without an owner.
        own_deadlines: seconds by the names of `shared.sandboxes.deadline_policy.FIELDS`; they override the spec's.
        besides: the nodes that the sandbox must not be placed on.
    """
    own: dict[str, Any] = dict(own_deadlines or {})
    specs.lock_shared(session, spec)
    sandbox = sandbox_status.add_sandbox(
        session,
        owner_id=owner_id,
        spec_id=spec.id,
        spec_revision=spec.revision,
        node_id=placement.place(session, spec.id, besides=besides, for_pool=owner_id is None),
        desired=Desired.RUNNING,
        boot_key=vault.encrypt(new_api_key()) if owner_id is None else None,
        due_at=due_at,
        **new_session_key(vault),
        **own,
    )
    change_recorder.record_change(session, deadlines.refresh(session, sandbox.id))
    return sandbox


def new_session_key(vault: Vault) -> dict[str, Any]:
    """Generate a session key, as the columns that store it."""
    key = new_api_key()
    return {"session_key": vault.encrypt(key), "session_key_digest": vault.digest(key)}


def set_deadlines(session: Session, sandbox: Sandbox, own_deadlines: Mapping[str, int | None]) -> None:
    """Change deadlines of a sandbox that the caller has locked.

    Deadlines that are not named stay. The change counts as activity.
    """
    for name, seconds in own_deadlines.items():
        setattr(sandbox, name, seconds)
    sandbox.last_active_at = sandbox.updated_at = now()
    session.flush()
    change_recorder.record_change(session, deadlines.refresh(session, sandbox.id))
