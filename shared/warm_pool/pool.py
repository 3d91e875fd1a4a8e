"""The warm pool in the store: sandboxes without an owner. A start claims one in its own transaction."""

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import and_, func, literal_column
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from shared.clock import now
from shared.crypto import Vault
from shared.models import Node, Sandbox, SandboxSpec
from shared.nodes import placement
from shared.sandboxes.desired_state import new_generation
from shared.sql import locks
from shared.sql.due_checks import while_exists
from shared.sql.statements import bind, bind_values, get_locked, send
from shared.states import Desired, NodeStatus, Reason, Status
from shared.warm_pool import claims as pool_claims
from shared.warm_pool.policy import OLD, WarmSandbox, backoff_until, plan_pool
from shared.warm_pool.start import SandboxStart, start

# A boot takes a hundred times as long as a claim: a pool is refilled when its claimed sandboxes run, or when they have
# waited for longer than this.
CLAIM_GRACE = timedelta(seconds=5)
# A pool is configured, or has sandboxes.
IN_USE = (
    while_exists(SandboxSpec.id, col(SandboxSpec.warm_target) > literal_column("0")),
    while_exists(Sandbox.spec_id, pool_claims.is_warm()),
)


class PooledSandbox(NamedTuple):
    id: str
    spec_id: str


def pools_to_reconcile(session: Session) -> list[str]:
    """Return the ids of the specs whose pools need an action, read without locks."""
    return [spec.id for spec in session.exec(POOLED).all() if _read_pool(session, spec).needs_reconciling]


def remove_unusable(session: Session, spec_id: str, *, due_at: datetime) -> list[Sandbox]:
    """Remove the unusable sandboxes of a spec's pool, and record failures or their end, unless another worker does so.

    If another transaction has locked the spec, failures are left to the next sweep, with their sandboxes.

    Returns:
        The sandboxes that are deleted.
    """
    if not locks.try_lock_pool(session, spec_id):
        return []
    spec = session.get_one(SandboxSpec, spec_id)
    pool = _read_pool(session, spec)
    if (pool.failed or pool.has_recovered) and not _try_lock(session, spec, key_share=True):
        return []
    _count_failures(spec, pool)
    return retire(session, pool.plan.retired, due_at=due_at)


def start_warm_sandbox(
    session: Session, vault: Vault, spec_id: str, *, boots: int, due_at: datetime
) -> SandboxStart | None:
    """Start one missing warm sandbox of a spec.

    Each transaction starts one sandbox only, so that other transactions can place sandboxes in between.

    Args:
        boots: the max number of warm sandboxes that boot on a node at a time, of all specs together.
        due_at: when the sweep enqueues the row, if its job is lost.

    Returns:
        None if none is missing, no node may take one, another worker fills the pool, or the spec is locked.
    """
    if not locks.try_lock_pool(session, spec_id):
        return None
    spec = session.get_one(SandboxSpec, spec_id)
    if backoff_until(spec.warm_failures, spec.warm_failed_at) is not None:
        return None
    # The check of the nodes is first: while owners wait for claimed sandboxes, it is the cheaper one, and fails.
    busy = _busy(session, boots)
    if not placement.has_room(session, spec_id, excluded=busy, for_pool=True):
        return None
    pool = _read_pool(session, spec)
    # A failure that is not counted yet may end in a backoff.
    if pool.failed or not pool.plan.wanted or not _try_lock(session, spec, read=True):
        return None
    return start(session, vault, owner_id=None, spec=spec, due_at=due_at, excluded=busy)


def retire(session: Session, ids: Collection[str], *, due_at: datetime) -> list[Sandbox]:
    """Set warm sandboxes' desired state to DELETED. Those that are claimed concurrently or locked stay.

    Returns:
        The sandboxes that are deleted.
    """
    still_warm = and_(col(Sandbox.id).in_(ids), pool_claims.is_warm())
    unlocked = session.execute(locks.in_order(Sandbox, still_warm, skip_locked=True)).scalars().all() if ids else ()
    if not unlocked:
        return []
    where = col(Sandbox.id).in_(unlocked)
    deleted = new_generation(Desired.DELETED, where, due_at=due_at, at=now(), reason=Reason.RETIRED)
    return list(session.scalars(deleted.returning(Sandbox).execution_options(populate_existing=True)).all())


def count(session: Session) -> dict[str, tuple[int, int]]:
    """Count the warm sandboxes by spec: the ready ones and the booting ones."""
    states = (Status.RUNNING, Status.STARTING)
    ready, booting = (func.count().filter(col(Sandbox.status) == status) for status in states)
    found = select(Sandbox.spec_id, ready, booting).where(pool_claims.is_warm()).group_by(col(Sandbox.spec_id))
    return {spec_id: (is_ready, boots) for spec_id, is_ready, boots in session.exec(found).all()}


def on_node(session: Session, node_id: str) -> list[PooledSandbox]:
    """Return the warm sandboxes placed on a node."""
    found = session.exec(select(Sandbox.id, Sandbox.spec_id).where(pool_claims.is_warm(), Sandbox.node_id == node_id))
    return [PooledSandbox(*row) for row in found.all()]


class _PoolRow(NamedTuple):
    """The columns of a warm sandbox that the plan of its pool needs.

    Args:
        is_cordoned: its node takes no sandboxes until an operator uncordons it.
        is_away: its node takes none now, but may at any time: it is lost, silent or closed.
    """

    id: str
    spec_revision: int
    desired: str
    status: str
    reason: str | None
    detail: str | None
    created_at: datetime
    status_changed_at: datetime
    is_cordoned: bool
    is_away: bool


class _PoolState:
    """A spec's pool as read, and the plan for it.

    Sandboxes that are away can't be claimed, so they are not counted. Nor are they removed, because most return soon:
    an engine responded late once, or the database was unavailable. Those on a node that stays lost are soon in ERROR.
    """

    def __init__(self, spec: SandboxSpec, rows: Sequence[_PoolRow]) -> None:
        self.rows = rows
        found = [(_warm_sandbox(spec, row), row.is_away) for row in rows]
        counted = [sandbox for sandbox, is_away in found if sandbox.is_unusable or not is_away]
        self.plan = plan_pool(counted, target=spec.warm_target, max_size=spec.warm_most)
        is_backing_off = backoff_until(spec.warm_failures, spec.warm_failed_at) is not None
        self.failed = [row for row in rows if row.status == Status.ERROR and row.reason != Reason.NODE_LOST]
        failed_at = spec.warm_failed_at
        self.has_recovered = failed_at is not None and any(_is_ready_since(row, failed_at) for row in self.rows)
        is_wanted = bool(self.plan.wanted and not is_backing_off)
        self.needs_reconciling = bool(self.plan.retired) or is_wanted or self.has_recovered


def _read_pool(session: Session, spec: SandboxSpec) -> _PoolState:
    rows = send(session, IN_POOL, bind_values(spec_id=spec.id, oldest_heartbeat=placement.oldest_heartbeat()))
    return _PoolState(spec, [_PoolRow(*row) for row in rows])


def _warm_sandbox(spec: SandboxSpec, row: _PoolRow) -> WarmSandbox:
    fits = row.spec_revision == spec.revision and not row.is_cordoned and row.desired == Desired.RUNNING
    return WarmSandbox(
        row.id,
        is_ready=row.status == Status.RUNNING,
        is_unusable=not fits or row.status not in (Status.STARTING, Status.RUNNING),
        is_old=row.created_at < now() - OLD,
    )


def _try_lock(session: Session, spec: SandboxSpec, **how: bool) -> bool:
    """Lock the spec and refresh it, without waiting; return whether that succeeded."""
    return get_locked(session, SandboxSpec, spec.id, skip_locked=True, **how) is not None


def _count_failures(spec: SandboxSpec, pool: _PoolState) -> None:
    if pool.failed:
        spec.warm_failures += 1
        # The lines after the first one are the container's log.
        summary = (pool.failed[-1].detail or "").partition("\n")[0]
        spec.warm_failed_at, spec.warm_detail = now(), f"{pool.failed[-1].reason}: {summary}"
    elif pool.has_recovered:
        spec.warm_failures, spec.warm_failed_at, spec.warm_detail = 0, None, None


def _is_ready_since(row: _PoolRow, time: datetime) -> bool:
    return row.status == Status.RUNNING and row.status_changed_at > time


def _busy(session: Session, boots: int) -> set[str]:
    """The nodes with `boots` booting warm sandboxes, and those with a claimed one that is not initialized."""
    booting = select(Sandbox.node_id).where(pool_claims.is_warm(), Sandbox.status == Status.STARTING)
    full = booting.group_by(col(Sandbox.node_id)).having(func.count() >= boots)
    found = [*session.exec(full).all(), *session.scalars(_nodes_with_claims())]
    return {node_id for node_id in found if node_id is not None}


def _nodes_with_claims() -> Any:
    """The nodes where an owner waits for a claimed sandbox, within `CLAIM_GRACE`."""
    claimed = and_(col(Sandbox.owner_id).is_not(None), col(Sandbox.boot_key).is_not(None))
    young = and_(col(Sandbox.ready_at).is_(None), col(Sandbox.created_at) > now() - CLAIM_GRACE)
    waiting = select(Sandbox.node_id).where(Sandbox.status == Status.STARTING, claimed, young)
    # A row that a worker must process is due or leased. Each column has an index, which SQLite uses in separate queries
    # only.
    return waiting.where(col(Sandbox.due_at).is_not(None)).union(waiting.where(col(Sandbox.lease_until).is_not(None)))


# --- statements of each sweep, built once ---------------------------------------------------------------------------

POOLED = select(SandboxSpec).where(
    (col(SandboxSpec.warm_target) > 0) | col(SandboxSpec.id).in_(select(Sandbox.spec_id).where(pool_claims.is_warm()))
)
IS_CORDONED = col(Node.status) == NodeStatus.CORDONED
IS_AWAY = and_(~IS_CORDONED, ~and_(*placement.takes_sandboxes(bind("oldest_heartbeat"))))
IN_POOL = (
    sql_select(
        *(getattr(Sandbox, name) for name in _PoolRow._fields if name not in ("is_cordoned", "is_away")),
        # A sandbox without a node is neither on a cordoned node nor away.
        *(func.coalesce(condition, False) for condition in (IS_CORDONED, IS_AWAY)),
    )
    .outerjoin(Node, col(Node.id) == col(Sandbox.node_id))
    .where(pool_claims.is_warm(), col(Sandbox.spec_id) == bind("spec_id"))
    .order_by(*pool_claims.ORDER)
)
