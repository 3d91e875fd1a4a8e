"""Access of HTTP traffic to a sandbox: credential check and state in one query, and resume on traffic.

The availability of a sandbox depends on its row alone (decision 26).
"""

from datetime import datetime
from enum import StrEnum, auto
from typing import Any, NamedTuple

from sqlalchemy import Row, and_
from sqlmodel import Session, col, select

from shared.crypto import Vault
from shared.errors import NotFound, Unauthenticated
from shared.models import ApiKey, Sandbox, SandboxSpec
from shared.queue.jobs import Job, PauseSandbox, ResumeSandbox
from shared.sandboxes import desired_state, quotas
from shared.sandboxes import queries as sandbox_queries
from shared.settings import Quotas
from shared.sql import locks
from shared.states import Desired, Status
from shared.users import api_keys


class Availability(StrEnum):
    """Whether a sandbox can serve a request."""

    RUNS = auto()
    # A worker is reconciling it. The availability is known when that generation is observed.
    SETTLES = auto()
    # Paused, or about to be. A resume brings it back.
    SLEEPS = auto()
    # In ERROR, until its owner resumes or deletes it.
    FAILED = auto()
    GONE = auto()


def availability_of(row: "Sandbox | SandboxAccess") -> Availability:
    """Compute the availability from the desired and the observed state."""
    is_observed = row.generation == row.observed_generation
    if row.desired == Desired.DELETED or row.status in (Status.DELETING, Status.DELETED):
        return Availability.GONE
    if row.desired != Desired.RUNNING and not is_observed and row.status != Status.ERROR:
        return Availability.SLEEPS
    match row.status:
        case Status.RUNNING:
            return Availability.RUNS
        case Status.PAUSED if is_observed:
            return Availability.SLEEPS
        case Status.ERROR if is_observed:
            return Availability.FAILED
        case _:
            return Availability.SETTLES


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
    changed: bool = True

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs to enqueue after the commit."""
        if not self.changed:
            return ()
        pauses = (PauseSandbox(row.id, row.node_id) for row in self.paused)
        return (*pauses, ResumeSandbox(self.sandbox.id, self.sandbox.node_id))


COLUMNS: list[Any] = [
    *(col(getattr(Sandbox, name)) for name in SandboxAccess._fields if name != "wake_on_traffic"),
    col(SandboxSpec.wake_on_traffic),
]
OF_SPEC = col(SandboxSpec.id) == col(Sandbox.spec_id)


def find_by_session_key(session: Session, vault: Vault, sandbox_id: str | None, key: str) -> SandboxAccess:
    """Return a sandbox if `key` is its own session key; without an id, the sandbox with this key.

    Raises:
        Unauthenticated: the key does not match, or there is no such sandbox.
        NotFound: the key matches, but the sandbox is deleted.
    """
    has_key = col(Sandbox.session_key_digest).in_(vault.digests(key))
    matches = has_key if sandbox_id is None else and_(col(Sandbox.id) == sandbox_id, has_key)
    owned = col(Sandbox.owner_id).is_not(None)
    found = session.execute(select(*COLUMNS).join(SandboxSpec, OF_SPEC).where(matches, owned)).first()
    if found is None:
        raise Unauthenticated("no sandbox has this key" if sandbox_id is None else "not this sandbox's session key")
    return _alive(found[0], found)


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
    if limits:
        locks.lock_user(session, owner_id)
    quotas.lock_resumed(session, sandbox_id, owner_id, limits)
    sandbox = sandbox_queries.get(session, sandbox_id, owner_id, lock=True)
    if only_asleep and availability_of(sandbox) != Availability.SLEEPS:
        return Resumption(sandbox, [], changed=False)
    paused = quotas.admit_resume(session, sandbox, limits, due_at=due_at)
    desired_state.set_desired(session, sandbox, Desired.RUNNING, due_at=due_at)
    return Resumption(sandbox, paused)


def _alive(sandbox_id: str, columns: Row[Any] | list[Any]) -> SandboxAccess:
    access = SandboxAccess(*columns)
    if access.id is None or availability_of(access) == Availability.GONE:
        raise NotFound("sandbox", sandbox_id)
    return access
