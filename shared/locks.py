"""Locks on several rows, taken in one order: no two transactions that lock the same rows wait for each other."""

from typing import Any

from sqlalchemy import ColumnElement
from sqlmodel import col, select


def in_order(table: Any, where: ColumnElement[bool], *, skip_locked: bool = False) -> Any:
    """A SELECT of the ids of rows that locks them, one after the other in the order of their ids.

    Args:
        skip_locked: leave out the rows that somebody else has locked.
    """
    found = select(table.id).where(where).order_by(col(table.id))
    return found.with_for_update(key_share=True, skip_locked=skip_locked)
