"""Access of HTTP traffic to a sandbox: credential check and state in one query, and resume on traffic.

The availability of a sandbox depends on its row alone (decision 26).
"""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum, auto
from functools import cache, partial
from typing import Any, NamedTuple

from sqlalchemy import Select, and_
from sqlalchemy import select as sql_select
from sqlmodel import Session, col

from shared.crypto import Vault
from shared.db.database import Database
from shared.errors import NotFound
from shared.models import ApiKey, Sandbox, SandboxSpec
from shared.queue.jobs import Job, PauseSandbox, ResumeSandbox
from shared.sandboxes import desired_state, quotas
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes import status as sandbox_status
from shared.settings import Quotas
from shared.sql import locks
from shared.sql.statements import bind_list, bind_list_values, rounded
from shared.states import Desired, Status
from shared.users import api_keys
from shared.users.api_keys import AuthenticatedKey


class Availability(StrEnum):
    """Whether a sandbox can serve a request."""

    RUNNING = auto()
    # A worker is reconciling it. The availability is known when that generation is observed.
    RECONCILING = auto()
    # Paused, or about to be. A resume brings it back.
    PAUSED = auto()
    # In ERROR, until its owner resumes or deletes it.
    FAILED = auto()
    DELETED = auto()


def availability_of(row: "Sandbox | SandboxAccess") -> Availability:
    """Compute the availability from the desired and the observed state."""
    is_observed = row.generation == row.observed_generation
    if row.desired == Desired.DELETED or row.status in (Status.DELETING, Status.DELETED):
        return Availability.DELETED
    if row.desired != Desired.RUNNING and not is_observed and row.status != Status.ERROR:
        return Availability.PAUSED
    match row.status:
        case Status.RUNNING:
            return Availability.RUNNING
        case Status.PAUSED if is_observed:
            return Availability.PAUSED
        case Status.ERROR if is_observed:
            return Availability.FAILED
        case _:
            return Availability.RECONCILING


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


def find_by_session_keys(database: Database, vault: Vault, keys: Sequence[str]) -> list[SandboxAccess | None]:
    """The sandbox with each session key; None: no sandbox with an owner has it. One query finds all."""
    found = api_keys.find_by_keys(database, vault, keys, _with_session_keys)
    return [SandboxAccess(*rows[0]) if rows else None for rows in found]


def find_by_api_keys(
    database: Database, vault: Vault, wanted: Sequence[tuple[str, str]]
) -> list[tuple[AuthenticatedKey, SandboxAccess | None] | None]:
    """The holder of each API key, with the sandbox of the given id if the holder owns it. One query finds all.

    Args:
        wanted: pairs of a sandbox's id and an API key.

    Returns:
        None for a key that is unknown, revoked or expired.
    """
    ids = sorted({sandbox_id for sandbox_id, _ in wanted})
    values = bind_list_values("sandbox", ids) | api_keys.times()
    select_of = partial(_with_api_keys, rounded(len(ids)))
    found = api_keys.find_by_keys(database, vault, [key for _, key in wanted], select_of, **values)
    return [_read(sandbox_id, rows) if rows else None for (sandbox_id, _), rows in zip(wanted, found, strict=True)]


def require_alive(sandbox_id: str, found: SandboxAccess | None) -> SandboxAccess:
    """Return the sandbox that was found.

    Raises:
        NotFound: there is none, or it is deleted.
    """
    if found is None or availability_of(found) == Availability.DELETED:
        raise NotFound("sandbox", sandbox_id)
    return found


def resume(
    session: Session, sandbox_id: str, owner_id: str, limits: Quotas, *, due_at: datetime, only_paused: bool = False
) -> Resumption:
    """Set a sandbox's desired state to RUNNING, within its owner's quotas.

    Args:
        only_paused: change nothing unless the sandbox is paused or about to be.

    Raises:
        NotFound: there is no such sandbox, it is deleted, or it belongs to another user.
        QuotaExceeded: a quota is used up, and no sandbox may be paused for it.
    """
    if limits:
        locks.lock_user(session, owner_id)
    quotas.lock_resumed(session, sandbox_id, owner_id, limits)
    sandbox = sandbox_queries.get(session, sandbox_id, owner_id, lock=True)
    if only_paused and availability_of(sandbox) != Availability.PAUSED:
        return Resumption(sandbox, [], changed=False)
    paused = quotas.admit_resume(session, sandbox, limits, due_at=due_at)
    desired_state.set_desired(session, sandbox, Desired.RUNNING, due_at=due_at)
    if sandbox.status == Status.ERROR:
        sandbox_status.restart_failed(session, sandbox_id)
    return Resumption(sandbox, paused)


def _read(sandbox_id: str, rows: Sequence[Sequence[Any]]) -> tuple[AuthenticatedKey, SandboxAccess | None]:
    """The holder of a key, and the sandbox with that id. Each row has a different sandbox of the holder, or none."""
    width = len(AuthenticatedKey._fields)
    sandboxes = (SandboxAccess(*row[width:]) for row in rows)
    return AuthenticatedKey(*rows[0][:width]), next((each for each in sandboxes if each.id == sandbox_id), None)


@cache
def _with_session_keys(digests: int) -> Select[Any]:
    digest = col(Sandbox.session_key_digest)
    found = sql_select(digest, *COLUMNS).join(SandboxSpec, OF_SPEC)
    return found.where(digest.in_(bind_list("digest", digests)), col(Sandbox.owner_id).is_not(None))


@cache
def _with_api_keys(sandboxes: int, digests: int) -> Select[Any]:
    owns = and_(col(Sandbox.id).in_(bind_list("sandbox", sandboxes)), col(Sandbox.owner_id) == col(ApiKey.user_id))
    found = api_keys.select_holders(ApiKey.digest).outerjoin(Sandbox, owns).outerjoin(SandboxSpec, OF_SPEC)
    return found.add_columns(*COLUMNS).where(col(ApiKey.digest).in_(bind_list("digest", digests)))
