"""Two concurrent transactions on one row: the second one begins before the first one commits."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from sqlalchemy import text
from sqlmodel import Session

from shared.db.database import Database
from tests.waiting import eventually

First = TypeVar("First")
Second = TypeVar("Second")


def overlap(
    database: Database, first: Callable[[Session], First], second: Callable[[Session], Second]
) -> tuple[First, Second]:
    """Run `first`, block `second` on it from another connection, commit `first`, and return both results."""
    return overlap_call(database, first, partial(_in_transaction, database, second))


def overlap_call(
    database: Database, first: Callable[[Session], First], second: Callable[[], Second]
) -> tuple[First, Second]:
    """Overlap `first` with a call that opens its own transactions."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        with database.transaction() as session:
            done = first(session)
            other = pool.submit(second)
            eventually(lambda: other.done() or _is_waiting(database, other))
        return done, other.result(timeout=30)


def _in_transaction(database: Database, act: Callable[[Session], Second]) -> Second:
    with database.transaction() as session:
        return act(session)


def _is_waiting(database: Database, other: Future[Second]) -> bool:
    if database.engine.dialect.name == "sqlite":
        return other.running()  # at BEGIN IMMEDIATE, or just before
    with database.reading() as session:
        waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        return bool(session.execute(waiting).scalar_one())
