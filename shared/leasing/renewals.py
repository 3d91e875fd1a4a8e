"""All leases of a process together: their renewal by one UPDATE, so that no row delays the others, and their expiry."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, or_, true
from sqlmodel import Session, col, select

from shared.clock import now
from shared.leasing.leases import Row
from shared.models import Sandbox
from shared.sql import locks
from shared.sql.statements import (
    bind,
    bind_list,
    bind_list_values,
    bind_values,
    count_written,
    guarded_update,
    rounded,
    send,
)
from shared.states import Desired

# An engine completes requests of clients that have died, and a stop takes long enough to overlap with a later start.
# Only a sandbox that was ready before is ever stopped. Such a sandbox is left alone until its lease expires.
HAS_NO_LATE_STOP = or_(col(Sandbox.ready_at).is_(None), col(Sandbox.desired) != Desired.RUNNING)

# The number of leases that one statement renews: SQLite takes no expression of more than 1,000 terms.
MAX_AT_ONCE = 256


class UnrenewedLeases(NamedTuple):
    """The leases that were not renewed, as the ids of their rows.

    Args:
        lost: the fence has changed, or the lease was released. A renewal would leave a lease that no worker releases.
        locked: the lease is still valid, but another transaction had locked the row.
    """

    lost: AbstractSet[str] = frozenset()
    locked: AbstractSet[str] = frozenset()


class FreedLeases(NamedTuple):
    """The number of a dead owner's rows that were freed, and whether none is left: locked rows are skipped."""

    number: int
    is_complete: bool


def renew(session: Session, table: type[Row], fences: Mapping[str, int], seconds: float) -> UnrenewedLeases:
    """Renew leases. Rows that other transactions have locked are skipped.

    Args:
        fences: the fence of each claim by the row's id.
        seconds: the new length of the leases.
    """
    ids, lost, locked = sorted(fences), set[str](), set[str]()
    for begin in range(0, len(ids), MAX_AT_ONCE):
        part = {row_id: fences[row_id] for row_id in ids[begin : begin + MAX_AT_ONCE]}
        found = _renew_part(session, table, part, seconds)
        lost |= found.lost
        locked |= found.locked
    return UnrenewedLeases(lost, locked)


def _renew_part(session: Session, table: type[Row], fences: Mapping[str, int], seconds: float) -> UnrenewedLeases:
    number = rounded(len(fences))
    parameters = bind_list_values("row_id", list(fences)) | bind_list_values("fence", list(fences.values()))
    until = bind_values(lease_until=now() + timedelta(seconds=seconds))
    renewed = {row_id for (row_id,) in send(session, _renewing(table, number), parameters | until)}
    if len(renewed) == len(fences):
        return UnrenewedLeases()
    held = {row_id for (row_id,) in send(session, _held(table, number), parameters)}
    return UnrenewedLeases(lost=fences.keys() - renewed - held, locked=held - renewed)


def expire_leases_of(session: Session, table: type[Row], owner: str, at: datetime) -> FreedLeases:
    """Expire the leases of a dead owner, and mark its rows due.

    A row that another transaction has locked is left to the next call. A sandbox that the dead owner may just have
    stopped is left alone.
    """
    values = {"lease_owner": None, "lease_until": None, "fence": col(table.fence) + 1, "due_at": at}
    may_expire = HAS_NO_LATE_STOP if table is Sandbox else true()
    held = and_(col(table.lease_until).is_not(None), col(table.lease_owner) == owner, may_expire)
    ids = session.execute(locks.in_order(table, held, skip_locked=True)).scalars().all()
    number = count_written(session, guarded_update(table, col(table.id).in_(ids), values)) if ids else 0
    left = session.execute(select(table.id).where(held).limit(1)).first()
    return FreedLeases(number, is_complete=left is None)


# --- prepared statements --------------------------------------------------------------------------------------------


@lru_cache
def _renewing(table: type[Row], number: int) -> Any:
    free = locks.in_order(table, _is_held(table, number), skip_locked=True)
    return guarded_update(table, col(table.id).in_(free), {"lease_until": bind("lease_until")}, (col(table.id),))


@lru_cache
def _held(table: type[Row], number: int) -> Any:
    return select(table.id).where(_is_held(table, number))


def _is_held(table: type[Row], number: int) -> ColumnElement[bool]:
    claims = zip(bind_list("row_id", number), bind_list("fence", number), strict=True)
    leased = (and_(col(table.id) == row_id, col(table.fence) == fence) for row_id, fence in claims)
    return and_(or_(*leased), col(table.lease_until).is_not(None))
