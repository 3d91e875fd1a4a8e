"""Renewal of leases: one UPDATE for all leases of a process, so that no row delays the others."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, or_
from sqlmodel import Session, col, select

from shared.clock import now
from shared.leasing.leases import Row
from shared.sql import locks
from shared.sql.statements import bind, bind_list, bind_list_values, bind_values, guarded_update, rounded, send


class Lapsed(NamedTuple):
    """The leases that were not renewed, as the ids of their rows.

    Args:
        lost: the fence has changed, or the lease was released. A renewal would leave a lease that no worker releases.
        locked: the lease is still valid, but another transaction had locked the row.
    """

    lost: AbstractSet[str] = frozenset()
    locked: AbstractSet[str] = frozenset()


def renew(session: Session, table: type[Row], fences: Mapping[str, int], seconds: float) -> Lapsed:
    """Renew leases. Rows that other transactions have locked are skipped.

    Args:
        fences: the fence of each claim by the row's id; at least one.
        seconds: the new length of the leases.
    """
    number = rounded(len(fences))
    parameters = bind_list_values("row_id", list(fences)) | bind_list_values("fence", list(fences.values()))
    until = bind_values(lease_until=now() + timedelta(seconds=seconds))
    renewed = {row_id for (row_id,) in send(session, _renewing(table, number), parameters | until)}
    if len(renewed) == len(fences):
        return Lapsed()
    held = {row_id for (row_id,) in send(session, _held(table, number), parameters)}
    return Lapsed(lost=fences.keys() - renewed - held, locked=held - renewed)


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
