"""Taking turns on a row: claim it, work, let go; the same for every kind of job."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any

import structlog
from sqlalchemy import ColumnElement, and_, true
from sqlmodel import col

from shared import clock
from shared.clock import after
from shared.db.database import UNAVAILABLE
from shared.errors import LeaseLost
from shared.leasing import leases
from shared.leasing.leases import Row
from shared.models import Sandbox
from worker.agent_server.errors import AgentServerUnreachable, WrongServer
from worker.context import WorkerContext
from worker.engine.protocol import EngineUnavailable
from worker.leasing.agent_lane import AgentWork

log = structlog.get_logger()

MAX_BACKOFF_SECONDS = leases.MAX_SECONDS
UNAVAILABLE_SECONDS = 2.0


class Retry(Exception):
    """The work could not be finished now; the row asks for another turn.

    Args:
        seconds: how long to wait; None: longer with every failed attempt.
        counts: whether this was a failed attempt.
    """

    def __init__(self, why: str, *, seconds: float | None = None, counts: bool = True) -> None:
        """Say why, for the log; no secret may be in it."""
        super().__init__(why)
        self.seconds = seconds
        self.counts = counts


def run_leased(
    context: WorkerContext,
    table: type[Row],
    row_id: str,
    work: Callable[[WorkerContext, Row], None],
    give_up: Callable[[WorkerContext, Row], None],
    only: ColumnElement[bool] | None = None,
) -> bool:
    """Work on a row until it wants nothing more, or must wait, or is somebody else's.

    `work` raises Retry to ask for another turn. Whatever else it raises is a defect and costs an attempt: the row is
    never lost. After the last attempt `give_up` says so in the row; it may raise Retry where giving up is no choice.

    Args:
        only: the row is left to others unless this is true of it; keep it, as `leases.claim` has it.

    Returns:
        Whether it was worked on, and wants nothing more.
    """
    done = False
    while (row := _claim(context, table, row_id, only)) is not None:
        try:
            with context.renewer.holding(table, row):
                retry = _work(context, row, work, give_up)
                wants_more = _release(context, table, row, retry)
        except LeaseLost:
            log.warning("turn_lost", table=table.__tablename__, row=row_id)
            return False
        if retry is not None:
            return False
        if not wants_more:
            return True
        done = True
    return done


@contextmanager
def taking_place(context: WorkerContext, work: AgentWork) -> Iterator[None]:
    """Hold one of the places for jobs that ask agent servers, for the length of the block.

    Raises:
        Retry: none is free. No thread waits for one, and no try is lost.
    """
    if not context.lane.enter(work):
        raise Retry("too many jobs ask agent servers", seconds=context.lane.retry_seconds, counts=False)
    try:
        yield
    finally:
        if (job := context.lane.leave(work)) is not None:
            context.publisher.publish(job)


def backoff(attempt: int) -> float:
    """Seconds to wait after so many failed attempts: half a second, doubling."""
    # The exponent is bounded too: an engine may refuse for days, and a float holds no power of two that large.
    return float(min(0.5 * 2 ** min(attempt, 16), MAX_BACKOFF_SECONDS))


def _claim(context: WorkerContext, table: type[Row], row_id: str, only: ColumnElement[bool] | None) -> Row | None:
    if clock.is_wrong():
        return None  # the row stays due, for a worker whose clock is right
    renewer, where = context.renewer, _is_ours(context.settings.node, table, only)
    return leases.claim_and_commit(context.database, table, row_id, renewer.owner, renewer.seconds, where=where)


@lru_cache
def _is_ours(node: str, table: type[Any], only: ColumnElement[bool] | None) -> ColumnElement[bool]:
    """A message may be older than the sandbox's move to another node, whose engine is the one that counts now."""
    ours = col(Sandbox.node_id) == node if table is Sandbox else true()
    return and_(ours, true() if only is None else only)


def _work(
    context: WorkerContext,
    row: Any,
    work: Callable[[WorkerContext, Any], None],
    give_up: Callable[[WorkerContext, Any], None] | None,
) -> Retry | None:
    try:
        work(context, row)
    except LeaseLost:
        raise
    except Retry as again:
        log.info("try_again", row=row.id, attempt=row.attempt, why=str(again))
        return again
    except (EngineUnavailable, AgentServerUnreachable, WrongServer) as error:
        log.warning("unavailable", row=row.id, error=str(error))
        return Retry(str(error), seconds=UNAVAILABLE_SECONDS, counts=False)
    except UNAVAILABLE as error:
        log.warning("store_unavailable", row=row.id, error=type(error).__name__)
        return Retry(type(error).__name__, seconds=UNAVAILABLE_SECONDS, counts=False)
    except Exception as error:
        # A defect of ours: the trace shows code, not values, and the sweep brings the row back.
        log.exception("turn_failed", row=row.id, attempt=row.attempt, error=type(error).__name__)
        last = row.attempt + 1 >= context.settings.max_attempts
        return _work(context, row, give_up, None) if last and give_up else Retry(type(error).__name__)
    return None


def _release(context: WorkerContext, table: type[Row], row: Any, retry: Retry | None) -> bool:
    """Let go, unless that went with the work's last fact; whether the row wants more."""
    if row.lease_until is None:
        return row.due_at is not None
    with context.database.transaction() as session:
        if retry is not None and retry.counts:
            leases.write(session, table, row.id, row.fence, attempt=row.attempt + 1)
        return leases.release(session, table, row.id, row.fence, _retry_at(row, retry))


def _retry_at(row: Any, retry: Retry | None) -> datetime | None:
    if retry is None:
        return None
    return after(backoff(row.attempt) if retry.seconds is None else retry.seconds)
