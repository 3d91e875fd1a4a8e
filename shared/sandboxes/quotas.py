"""Quotas, checked in the request's transaction under the user's lock, so that only one request takes the last slot."""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import and_, func, or_
from sqlmodel import Session, col, select

from shared.clock import MAX_ERROR, now
from shared.errors import QuotaExceeded
from shared.models import Sandbox, SandboxSpec, StartTask
from shared.models.conversations import UNFINISHED
from shared.sandboxes import desired_state, specs
from shared.settings import QuotaPolicy, Quotas
from shared.sql import locks
from shared.states import Desired, Reason

MINUTE = timedelta(minutes=1)
NOT_DELETED = tuple(desired for desired in Desired if desired != Desired.DELETED)
# Sent as Retry-After: when a slot becomes free is unknown.
RETRY_SECONDS = 10

RUNNING = "running sandboxes (AW_QUOTA_RUNNING)"
SANDBOXES = "sandboxes (AW_QUOTA_SANDBOXES)"
CREATES = "new sandboxes in a minute (AW_QUOTA_CREATES_PER_MINUTE)"


def lock_resumed(session: Session, sandbox_id: str, owner_id: str, quotas: Quotas) -> None:
    """Lock the sandbox to be resumed and all that `admit_resume` may pause for it. The caller has locked the user."""
    if quotas.policy != QuotaPolicy.REJECT and _is_full(session, owner_id, quotas):
        _lock_running(session, owner_id, sandbox_id)


def admit_create(
    session: Session, owner_id: str, quotas: Quotas, *, spec: SandboxSpec, due_at: datetime
) -> list[Sandbox]:
    """Check that the owner may have one more sandbox of a spec. The caller has locked the user.

    Returns:
        The sandboxes that are paused to make room. The caller enqueues their jobs after the commit.

    Raises:
        QuotaExceeded: a quota is used up, and no sandbox may be paused for it.
    """
    _check_total(session, owner_id, quotas.sandboxes)
    check_rate(session, owner_id, quotas)
    if not _is_full(session, owner_id, quotas):
        return []
    if quotas.policy != QuotaPolicy.REJECT:
        specs.lock_shared(session, spec)  # before a sandbox is locked
    return _make_room(session, owner_id, quotas, due_at)


def admit_resume(session: Session, sandbox: Sandbox, quotas: Quotas, *, due_at: datetime) -> list[Sandbox]:
    """Check that the owner may resume a sandbox, as `admit_create` does. One that is to run is counted already.

    The caller has locked the user, and called `lock_resumed`.
    """
    if sandbox.desired == Desired.RUNNING or sandbox.owner_id is None:
        return []
    if not _is_full(session, sandbox.owner_id, quotas):
        return []
    return _make_room(session, sandbox.owner_id, quotas, due_at)


def check_rate(session: Session, owner_id: str, quotas: Quotas) -> None:
    """Check that the owner may create one more sandbox now, as far as the rate is concerned.

    Starts that failed immediately because no model is configured count as creates. The caller has locked the user.

    Raises:
        QuotaExceeded: too many were created within the last minute.
    """
    if not (limit := quotas.creates_per_minute):
        return
    failed = (col(StartTask.reason) == Reason.LLM_KEY_MISSING, col(StartTask.made_sandbox).is_(False))
    times = [*_newest(session, Sandbox, owner_id, limit), *_newest(session, StartTask, owner_id, limit, *failed)]
    # The newest `limit` creates fill the minute: the next one is admitted when the oldest of them is a minute old.
    for oldest in sorted(times, reverse=True)[limit - 1 : limit]:
        wait = max(1, math.ceil((oldest + MINUTE - now()).total_seconds()))
        raise QuotaExceeded(CREATES, limit, f"retry in {wait} s", wait)


def _newest(session: Session, table: Any, owner_id: str, limit: int, *where: Any) -> Sequence[datetime]:
    """The times of the owner's rows of the last minute, newest first."""
    # Later times were written before the database's clock was set back: they would count until the clock reaches them.
    is_recent = col(table.created_at).between(now() - MINUTE, now() + MAX_ERROR)
    recent = select(table.created_at).where(table.owner_id == owner_id, is_recent, *where)
    found: Sequence[datetime] = session.exec(recent.order_by(col(table.created_at).desc()).limit(limit)).all()
    return found


def _check_total(session: Session, owner_id: str, limit: int) -> None:
    if limit and _count(session, owner_id, *NOT_DELETED) >= limit:
        raise QuotaExceeded(SANDBOXES, limit, "delete one, then retry", RETRY_SECONDS)


def _make_room(session: Session, owner_id: str, quotas: Quotas, due_at: datetime) -> list[Sandbox]:
    limit = quotas.running
    if quotas.policy == QuotaPolicy.REJECT:
        raise QuotaExceeded(RUNNING, limit, "pause or delete one, then retry", RETRY_SECONDS)
    oldest = _choose(session, owner_id, limit)
    for sandbox in oldest:
        desired_state.set_desired(session, sandbox, Desired.PAUSED, due_at=due_at, reason=Reason.MADE_ROOM)
    return oldest


def _choose(session: Session, owner_id: str, limit: int) -> list[Sandbox]:
    """The oldest running sandboxes above the limit, without those that a conversation is being started in."""
    # Locked, so that none is deleted before it is paused.
    _lock_running(session, owner_id)
    running = select(Sandbox).where(Sandbox.owner_id == owner_id, Sandbox.desired == Desired.RUNNING)
    oldest_first = running.order_by(col(Sandbox.created_at), col(Sandbox.id))
    found = session.exec(oldest_first.execution_options(populate_existing=True)).all()
    excess = max(0, len(found) + 1 - limit)
    busy = session.exec(_with_unfinished_starts(owner_id)).all()
    free = [sandbox for sandbox in found if sandbox.id not in busy]
    if len(free) < excess:
        advice = "conversations are being started in them: wait for that, or pause or delete one, then retry"
        raise QuotaExceeded(RUNNING, limit, advice, RETRY_SECONDS)
    return free[:excess]


def _is_full(session: Session, owner_id: str, quotas: Quotas) -> bool:
    return bool(quotas.running) and _count(session, owner_id, Desired.RUNNING) >= quotas.running


def _lock_running(session: Session, owner_id: str, *others: str) -> None:
    running = and_(col(Sandbox.owner_id) == owner_id, col(Sandbox.desired) == Desired.RUNNING)
    session.execute(locks.in_order(Sandbox, or_(running, col(Sandbox.id).in_(others))))


def _with_unfinished_starts(owner_id: str) -> Any:
    return select(StartTask.sandbox_id).where(StartTask.owner_id == owner_id, *UNFINISHED)


def _count(session: Session, owner_id: str, *desired: Desired) -> int:
    statement = select(func.count()).select_from(Sandbox)
    return session.exec(statement.where(Sandbox.owner_id == owner_id, col(Sandbox.desired).in_(desired))).one()
