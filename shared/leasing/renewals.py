"""Leases renewed: with one UPDATE for all that a process holds, so that no row costs the others their time."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, and_, or_, update
from sqlmodel import Session, col, select

from shared.clock import now
from shared.leasing.leases import Row
from shared.sql import locks
from shared.sql.prepared import give, give_several, given, rounded, send, several


class Lapsed(NamedTuple):
    """The leases that were not renewed, by the ids of their rows.

    Args:
        lost: the fence has moved on, or the row was let go: nobody would let it go a second time.
        locked: they are held still; somebody had locked their rows.
    """

    lost: AbstractSet[str] = frozenset()
    locked: AbstractSet[str] = frozenset()


def renew(session: Session, table: type[Row], fences: Mapping[str, int], seconds: float) -> Lapsed:
    """Hold rows for so many seconds more; those that somebody has locked are passed over.

    Args:
        fences: the fence of each claim, by the row's id; at least one.
    """
    number = rounded(len(fences))
    asked = give_several("row_id", list(fences)) | give_several("fence", list(fences.values()))
    until = give(lease_until=now() + timedelta(seconds=seconds))
    renewed = {row_id for (row_id,) in send(session, _renewing(table, number), asked | until)}
    if len(renewed) == len(fences):
        return Lapsed()
    held = {row_id for (row_id,) in send(session, _held(table, number), asked)}
    return Lapsed(lost=fences.keys() - renewed - held, locked=held - renewed)


# --- the statements, made once --------------------------------------------------------------------------------------


@lru_cache
def _renewing(table: type[Row], number: int) -> Any:
    free = locks.in_order(table, _is_held(table, number), skip_locked=True)
    renewed = update(table).where(col(table.id).in_(free)).values(lease_until=given("lease_until"))
    return renewed.returning(col(table.id))


@lru_cache
def _held(table: type[Row], number: int) -> Any:
    return select(table.id).where(_is_held(table, number))


def _is_held(table: type[Row], number: int) -> ColumnElement[bool]:
    claims = zip(several("row_id", number), several("fence", number), strict=True)
    mine = (and_(col(table.id) == row_id, col(table.fence) == fence) for row_id, fence in claims)
    return and_(or_(*mine), col(table.lease_until).is_not(None))
