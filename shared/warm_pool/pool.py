"""The warm pool in the store: members are sandboxes without an owner; a start claims one in its own transaction."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import and_, func, update
from sqlmodel import Session, col, select

from shared.clock import now
from shared.crypto import Vault
from shared.models import Node, Sandbox, SandboxSpec
from shared.nodes import placement
from shared.observability import metrics
from shared.observability.metrics import Source
from shared.sandboxes import create as sandbox_creation
from shared.sandboxes import specs
from shared.sql import locks
from shared.states import Desired, Reason, Status
from shared.warm_pool import claims as pool_claims
from shared.warm_pool.policy import OLD, WarmSandbox, plan_pool, rests_until

# A boot takes a hundred times what a claim takes: a pool is filled again once those who wait for its members have them,
# or have waited so long that something is wrong.
GIVING = timedelta(seconds=5)


class Pooled(NamedTuple):
    """A member, as far as its image goes."""

    id: str
    spec_id: str


def claim_or_create(
    session: Session,
    vault: Vault,
    *,
    owner_id: str,
    spec: SandboxSpec,
    due_at: datetime,
    own_deadlines: Mapping[str, int | None] | None = None,
) -> Sandbox:
    """A new sandbox for somebody: a member of the spec's pool if one is ready, else one that boots."""
    own = dict(own_deadlines or {})
    if spec.warm_most:
        member = pool_claims.claim(session, vault, owner_id=owner_id, spec=spec, due_at=due_at, own=own)
        metrics.note_start(session, spec.id, Source.BOOT if member is None else Source.POOL)
        if member is not None:
            return member
    return sandbox_creation.create(session, vault, owner_id=owner_id, spec=spec, due_at=due_at, own_deadlines=own)


def pools_to_reconcile(session: Session) -> list[str]:
    """The specs whose pools need tending, as far as a look without locks can tell."""
    pooled = select(Sandbox.spec_id).where(pool_claims.is_warm())
    found = select(SandboxSpec).where((col(SandboxSpec.warm_target) > 0) | col(SandboxSpec.id).in_(pooled))
    return [spec.id for spec in session.exec(found).all() if _look(session, spec).needs_reconciling]


def retire_useless(session: Session, spec_id: str, *, due_at: datetime) -> list[Sandbox]:
    """Retire the members of a spec's pool that are of no use, and write down failures, unless somebody else does so.

    Returns:
        The members that go.
    """
    if not locks.try_lock_pool(session, spec_id):
        return []
    spec = session.get_one(SandboxSpec, spec_id)
    look = _look(session, spec)
    _count_failures(session, spec, look)
    return retire(session, look.tending.retired, due_at=due_at)


def make_warm_sandbox(session: Session, vault: Vault, spec_id: str, *, boots: int, due_at: datetime) -> Sandbox | None:
    """Make one member of a spec's pool that is missing. One for each transaction: others place sandboxes in between.

    Args:
        boots: so many members boot on a node at a time, of all specs together.
        due_at: when the sweep hands it out, should its job be lost.

    Returns:
        None: none is missing, no node may take one, or somebody else makes them.
    """
    if not locks.try_lock_pool(session, spec_id):
        return None
    spec = session.get_one(SandboxSpec, spec_id)
    is_resting = rests_until(spec.warm_failures, spec.warm_failed_at) is not None
    if is_resting or not _look(session, spec).tending.wanted:
        return None
    busy = _busy(session, boots)
    if not placement.has_room(session, spec_id, besides=busy, for_pool=True):
        return None
    return sandbox_creation.create(session, vault, owner_id=None, spec=spec, due_at=due_at, besides=busy)


def retire(session: Session, ids: Collection[str], *, due_at: datetime) -> list[Sandbox]:
    """Wish members away; whoever was claimed meanwhile, or is locked, stays.

    Returns:
        Those that go.
    """
    members = and_(col(Sandbox.id).in_(ids), pool_claims.is_warm())
    unlocked = session.execute(locks.in_order(Sandbox, members, skip_locked=True)).scalars().all() if ids else ()
    values = {
        "desired": Desired.DELETED,
        "wish_reason": Reason.RETIRED,
        "generation": col(Sandbox.generation) + 1,
        "due_at": due_at,
        "updated_at": now(),
    }
    gone = update(Sandbox).where(col(Sandbox.id).in_(unlocked)).values(**values).returning(Sandbox)
    return list(session.scalars(gone.execution_options(populate_existing=True)).all()) if unlocked else []


def count(session: Session) -> dict[str, tuple[int, int]]:
    """How many members of each spec are ready, and how many boot."""
    states = (Status.RUNNING, Status.STARTING)
    ready, booting = (func.count().filter(col(Sandbox.status) == status) for status in states)
    found = select(Sandbox.spec_id, ready, booting).where(pool_claims.is_warm()).group_by(col(Sandbox.spec_id))
    return {spec_id: (is_ready, boots) for spec_id, is_ready, boots in session.exec(found).all()}


def on_node(session: Session, node_id: str) -> list[Pooled]:
    """The members that a node has, or gets."""
    found = session.exec(select(Sandbox.id, Sandbox.spec_id).where(pool_claims.is_warm(), Sandbox.node_id == node_id))
    return [Pooled(*row) for row in found.all()]


class _PoolState:
    """A spec's pool as it is."""

    def __init__(self, spec: SandboxSpec, rows: Sequence[Any]) -> None:
        self.rows = [row[0] for row in rows]
        members = [_member(spec, row[0], row[1]) for row in rows]
        self.tending = plan_pool(members, target=spec.warm_target, most=spec.warm_most)
        resting = rests_until(spec.warm_failures, spec.warm_failed_at) is not None
        self.needs_reconciling = bool(self.tending.retired or (self.tending.wanted and not resting))


def _look(session: Session, spec: SandboxSpec) -> _PoolState:
    at_work = and_(*placement.takes_sandboxes())
    statement = select(Sandbox, func.coalesce(at_work, False)).outerjoin(Node, col(Node.id) == col(Sandbox.node_id))
    mine = statement.where(pool_claims.is_warm(), Sandbox.spec_id == spec.id)
    return _PoolState(spec, session.execute(mine.order_by(*pool_claims.ORDER)).all())


def _member(spec: SandboxSpec, row: Sandbox, on_node: bool) -> WarmSandbox:
    boots = row.status == Status.STARTING
    fits = row.spec_revision == spec.revision and (on_node or (boots and row.node_id is None))
    return WarmSandbox(
        row.id,
        is_ready=row.status == Status.RUNNING,
        is_useless=not fits or row.status not in (Status.STARTING, Status.RUNNING) or row.desired != Desired.RUNNING,
        is_old=row.created_at < now() - OLD,
    )


def _count_failures(session: Session, spec: SandboxSpec, look: _PoolState) -> None:
    failed = [row for row in look.rows if row.status == Status.ERROR and row.reason != Reason.NODE_LOST]
    if failed:
        specs.lock(session, spec)
        spec.warm_failures += 1
        # The rest of the detail is its log.
        words = (failed[-1].detail or "").partition("\n")[0]
        spec.warm_failed_at, spec.warm_detail = now(), f"{failed[-1].reason}: {words}"
    elif spec.warm_failed_at is not None and any(_is_ready_since(row, spec.warm_failed_at) for row in look.rows):
        specs.lock(session, spec)
        spec.warm_failures, spec.warm_failed_at, spec.warm_detail = 0, None, None


def _is_ready_since(row: Sandbox, time: datetime) -> bool:
    return row.status == Status.RUNNING and row.settled_at > time


def _busy(session: Session, boots: int) -> set[str]:
    """The nodes on which as many members boot as may, and those that give members away just now."""
    booting = select(Sandbox.node_id).where(pool_claims.is_warm(), Sandbox.status == Status.STARTING)
    full = booting.group_by(col(Sandbox.node_id)).having(func.count() >= boots)
    found = [*session.exec(full).all(), *session.scalars(_giving())]
    return {node_id for node_id in found if node_id is not None}


def _giving() -> Any:
    """The nodes where somebody waits for a member to become theirs, and does not for long."""
    claimed = and_(col(Sandbox.owner_id).is_not(None), col(Sandbox.boot_key).is_not(None))
    young = and_(col(Sandbox.ready_at).is_(None), col(Sandbox.created_at) > now() - GIVING)
    waits = select(Sandbox.node_id).where(Sandbox.status == Status.STARTING, claimed, young)
    # What is being done is due or leased; each has an index of its own, which SQLite takes only when asked apart.
    return waits.where(col(Sandbox.due_at).is_not(None)).union(waits.where(col(Sandbox.lease_until).is_not(None)))
