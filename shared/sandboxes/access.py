"""Access of HTTP traffic to a sandbox: credential check and state in one query, and resume on traffic."""

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Row, and_
from sqlmodel import Session, col, select

from shared.crypto import Vault
from shared.errors import NotFound, Unauthenticated
from shared.models import ApiKey, Sandbox, SandboxSpec
from shared.sandboxes import desired_state, quotas
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.availability import Availability, availability_of
from shared.settings import Quotas
from shared.states import Desired
from shared.users import api_keys


class SandboxAccess(NamedTuple):
    """The columns of a sandbox and of its spec that a proxied request needs."""

    id: str
    owner_id: str
    desired: str
    status: str
    generation: int
    observed_generation: int
    reason: str | None
    exposed_urls: list[dict[str, Any]] | None
    session_key: str  # ciphertext
    last_active_at: datetime
    deadline_at: datetime | None
    deadline_does: str | None
    wake_on_traffic: bool


class Resumption(NamedTuple):
    """The outcome of `resume`."""

    sandbox: Sandbox
    # The sandboxes whose desired state was set to PAUSED to make room.
    paused: list[Sandbox]
    # Whether the desired state was changed.
    changed: bool


COLUMNS: list[Any] = [
    *(col(getattr(Sandbox, name)) for name in SandboxAccess._fields if name != "wake_on_traffic"),
    col(SandboxSpec.wake_on_traffic),
]
OF_SPEC = col(SandboxSpec.id) == col(Sandbox.spec_id)


def find_by_session_key(session: Session, vault: Vault, sandbox_id: str, key: str) -> SandboxAccess:
    """Return a sandbox if `key` is its own session key.

    Raises:
        Unauthenticated: the key does not match, or there is no such sandbox.
        NotFound: the key matches, but the sandbox is deleted.
    """
    matches = and_(col(Sandbox.id) == sandbox_id, col(Sandbox.session_key_digest).in_(vault.digests(key)))
    owned = col(Sandbox.owner_id).is_not(None)
    found = session.execute(select(*COLUMNS).join(SandboxSpec, OF_SPEC).where(matches, owned)).first()
    if found is None:
        raise Unauthenticated("not this sandbox's session key")
    return _alive(sandbox_id, found)


def find_by_api_key(session: Session, vault: Vault, sandbox_id: str, key: str) -> tuple[SandboxAccess, ApiKey]:
    """Return a sandbox if `key` is an API key of its owner, and the row of the key.

    Raises:
        Unauthenticated: the key is unknown, revoked or expired.
        NotFound: there is no such sandbox, it is deleted, or it belongs to another user.
    """
    owns = and_(col(Sandbox.id) == sandbox_id, col(Sandbox.owner_id) == col(ApiKey.user_id))
    statement = select(ApiKey, *COLUMNS).outerjoin(Sandbox, owns).outerjoin(SandboxSpec, OF_SPEC)
    found = session.execute(statement.where(api_keys.in_force(vault, key))).first()
    if found is None:
        raise Unauthenticated("unknown, revoked or expired API key")
    row, *columns = found
    return _alive(sandbox_id, columns), row


def resume(
    session: Session, sandbox_id: str, owner_id: str, limits: Quotas, *, due_at: datetime, only_asleep: bool = False
) -> Resumption:
    """Set a sandbox's desired state to RUNNING, within its owner's quotas.

    Args:
        only_asleep: change nothing unless the sandbox is paused or about to be.

    Raises:
        NotFound: there is no such sandbox, it is deleted, or it belongs to another user.
        QuotaExceeded: a quota is used up, and no sandbox may be paused for it.
    """
    quotas.lock(session, owner_id, limits)
    quotas.lock_resumed(session, sandbox_id, owner_id, limits)
    sandbox = sandbox_queries.get(session, sandbox_id, owner_id, lock=True)
    if only_asleep and availability_of(sandbox) != Availability.SLEEPS:
        return Resumption(sandbox, [], changed=False)
    paused = quotas.admit_resume(session, sandbox, limits, due_at=due_at)
    desired_state.set_desired(session, sandbox, Desired.RUNNING, due_at=due_at)
    return Resumption(sandbox, paused, changed=True)


def _alive(sandbox_id: str, columns: Row[Any] | list[Any]) -> SandboxAccess:
    access = SandboxAccess(*columns)
    if access.id is None or availability_of(access) == Availability.GONE:
        raise NotFound("sandbox", sandbox_id)
    return access
