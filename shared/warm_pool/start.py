"""The start of a sandbox: its row, its desired state RUNNING, and its job. All sandboxes are started here.

An owner's start claims a warm sandbox if the pool of the spec has a ready one, and creates one that boots if not.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlmodel import Session

from shared.changes.recorder import Change, Kind, record_change
from shared.crypto import Vault, new_api_key
from shared.db.database import Database
from shared.models import Sandbox, SandboxSpec
from shared.nodes import placement
from shared.observability import metrics
from shared.observability.metrics import StartSource
from shared.queue.jobs import BootWarmSandbox, Job, PauseSandbox, StartSandbox
from shared.sandboxes import deadlines, specs
from shared.sandboxes import quotas as sandbox_quotas
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.deadlines import NEVER
from shared.settings import NO_QUOTAS, Quotas
from shared.states import Desired
from shared.warm_pool.claims import IN_TRANSACTION, WITH_ENTRY, bind_claim, read_claim


@dataclass(frozen=True)
class SandboxStart:
    sandbox: Sandbox
    spec: SandboxSpec
    # The owner's sandboxes that are paused to make room for it.
    paused: list[Sandbox] = field(default_factory=list)

    @property
    def jobs(self) -> tuple[Job, ...]:
        """The jobs to enqueue after the commit."""
        start = BootWarmSandbox if self.sandbox.owner_id is None else StartSandbox
        pauses = (PauseSandbox(row.id, row.node_id) for row in self.paused)
        return (*pauses, start(self.sandbox.id, self.sandbox.node_id))


def start(
    session: Session,
    vault: Vault,
    *,
    owner_id: str | None,
    spec: SandboxSpec,
    due_at: datetime,
    own_deadlines: Mapping[str, int | None] | None = None,
    quotas: Quotas = NO_QUOTAS,
    excluded: Collection[str] = frozenset(),
) -> SandboxStart:
    """Start a sandbox, placed on a node if one has room.

    Args:
        owner_id: None makes a warm sandbox, which boots without an owner.
        due_at: when the sweep enqueues the row, if its job is lost.
        own_deadlines: seconds by the names of `shared.sandboxes.deadlines.FIELDS`; they override the spec's.
        quotas: the owner's. With any, the caller has locked the user.
        excluded: the nodes that the sandbox must not be placed on.

    Raises:
        QuotaExceeded: a quota is used up, and no sandbox may be paused for it.
    """
    columns = {"owner_id": owner_id, "due_at": due_at, **(own_deadlines or {})}
    if owner_id is None:
        return SandboxStart(_create(session, vault, spec, columns, excluded), spec)
    paused = sandbox_quotas.admit_create(session, owner_id, quotas, spec=spec, due_at=due_at) if quotas else []
    claimed = _claim(session, vault, spec, columns) if spec.warm_most else None
    return SandboxStart(claimed or _create(session, vault, spec, columns, excluded), spec, paused)


def start_in_one_statement(
    database: Database,
    vault: Vault,
    *,
    owner_id: str,
    spec_id: str | None,
    due_at: datetime,
    own_deadlines: Mapping[str, int | None],
) -> SandboxStart | None:
    """Claim a warm sandbox with its history and change entry, and commit: one message to PostgreSQL instead of ten.

    Rare cases are left to `start`, such as quotas, and a max age, which needs a deadline. SQLite has no such statement,
    and needs none: it runs in this process.

    Args:
        spec_id: None stands for the spec that `specs.choose_spec` would return.

    Returns:
        None if nothing was written.
    """
    if database.engine.dialect.name != "postgresql" or own_deadlines.get("max_age_seconds"):
        return None
    is_ageless = own_deadlines.get("max_age_seconds") == NEVER
    columns = {"owner_id": owner_id, "due_at": due_at, "is_ageless": is_ageless, **own_deadlines}
    for row in database.execute_and_commit(WITH_ENTRY, bind_claim(vault, spec_id, columns)):
        started = SandboxStart(*read_claim(row))
        database.notify(Change(owner_id, Kind.SANDBOX, started.sandbox.id, started.sandbox.status))
        metrics.count_start(started.spec.id, StartSource.POOL)
        return started
    return None


def _claim(session: Session, vault: Vault, spec: SandboxSpec, columns: Mapping[str, Any]) -> Sandbox | None:
    sandbox_id = session.execute(IN_TRANSACTION, bind_claim(vault, spec.id, columns)).scalar_one_or_none()
    metrics.record_start(session, spec.id, StartSource.BOOT if sandbox_id is None else StartSource.POOL)
    if sandbox_id is None:
        return None
    sandbox_status.record_claim(session, sandbox_id)
    sandbox = deadlines.refresh(session, sandbox_id)
    record_change(session, sandbox)
    return sandbox


def _create(
    session: Session, vault: Vault, spec: SandboxSpec, columns: Mapping[str, Any], excluded: Collection[str]
) -> Sandbox:
    is_warm = columns["owner_id"] is None
    specs.lock_shared(session, spec)
    key, digest = vault.new_session_key()
    sandbox = sandbox_status.add_sandbox(
        session,
        spec_id=spec.id,
        spec_revision=spec.revision,
        node_id=placement.place(session, spec.id, excluded=excluded, for_pool=is_warm),
        desired=Desired.RUNNING,
        boot_key=vault.encrypt(new_api_key()) if is_warm else None,
        session_key=key,
        session_key_digest=digest,
        **columns,
    )
    record_change(session, deadlines.refresh(session, sandbox.id))
    return sandbox
