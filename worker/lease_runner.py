"""Running a leased row: claim it, work on it, release it. Every kind of job runs like this."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from shared import clock
from shared.agent_server.errors import AgentServerUnreachable, WrongServer
from shared.clock import after
from shared.crypto import MissingKey
from shared.db.database import UNAVAILABLE
from shared.errors import LeaseLost
from shared.leasing import leases
from shared.leasing.leases import Row
from shared.leasing.limits import MAX_SECONDS
from shared.models import Sandbox
from shared.observability import metrics
from shared.observability.correlation import request_id
from shared.queue.jobs import CheckSandbox
from worker.context import Lane, LaneJob, WorkerContext
from worker.engine.protocol import EngineUnavailable

log = structlog.get_logger()

MAX_BACKOFF_SECONDS = MAX_SECONDS
UNAVAILABLE_SECONDS = 2.0


class Retry(Exception):
    """Raised by work that cannot finish now; the row is requeued.

    Args:
        seconds: delay before the next run, shortened to `MAX_SECONDS`; None: backoff that grows with every
            failed attempt.
        counts: whether this run counts as a failed attempt.
    """

    def __init__(self, why: str, *, seconds: float | None = None, counts: bool = True) -> None:
        """Store the reason for the log; it must not contain secrets."""
        super().__init__(why)
        self.seconds = seconds
        self.counts = counts


def run_leased(
    context: WorkerContext,
    table: type[Row],
    row_id: str,
    work: Callable[[WorkerContext, Row], None],
    give_up: Callable[[WorkerContext, Row], None],
    *,
    only_observed: bool = False,
) -> bool:
    """Run `work` on a row until the row is no longer due, has to wait, or is leased by another worker.

    A run that takes longer than `context.JOB_SECONDS` continues after the return.

    `work` raises Retry to requeue the row. While an engine, an agent server, the store or a secret key is unavailable,
    retries have no max. Any other error is a bug in this service and counts as a failed attempt: the row is never
    lost. After the last attempt `give_up` writes the failure to the row; it may raise Retry where the work must not be
    given up.

    Args:
        only_observed: skip a sandbox whose desired state is not observed yet. If the run leaves the row due, it
            enqueues a job at its end: that of a newer desired state was dropped if it found the lease.

    Returns:
        Whether the work ran, and the row is no longer due or its job is enqueued.
    """
    claim = partial(_claim, context, table, row_id, only_observed=only_observed)
    if (row := claim()) is None:
        return False
    run = partial(_run_claimed, context, table, row, claim, work, give_up)
    return context.runs.run(partial(_run_check, context, row, run) if only_observed else run)


@contextmanager
def taking_slot(context: WorkerContext, lane: Lane, work: LaneJob) -> Iterator[None]:
    """Occupy a slot of the lane for the length of the block.

    Raises:
        Retry: no slot is free. No thread waits for a slot, and no attempt is counted.
    """
    if not lane.enter(work):
        raise Retry("too many jobs of this kind run", seconds=lane.retry_seconds, counts=False)
    try:
        yield
    finally:
        if (waiting := lane.leave(work)) is not None:
            _publish(context, waiting)


def backoff(attempt: int) -> float:
    """Return the delay after `attempt` failed attempts: half a second, doubled each time, up to a max."""
    # The exponent has a max too: an engine may refuse for days, and a float holds no power of two that large.
    return float(min(0.5 * 2 ** min(attempt, 16), MAX_BACKOFF_SECONDS))


def _publish(context: WorkerContext, waiting: LaneJob) -> None:
    """Enqueue a job that waited for a slot, under the id of its own request, and outside of any trace."""
    alone = Context()
    alone.run(request_id.set, waiting.request_id)
    alone.run(context.publisher.publish, waiting.job)


def _claim(context: WorkerContext, table: type[Row], row_id: str, *, only_observed: bool) -> Row | None:
    if clock.is_wrong():
        return None  # the row stays due for a worker whose clock is right
    if table is Sandbox and not context.engine_checked.is_set():
        return None  # the engine may be another node's
    renewer, node_id = context.renewer, context.settings.node
    claimant = (row_id, renewer.owner, renewer.seconds)
    return leases.claim_and_commit(context.database, table, *claimant, node_id=node_id, only_observed=only_observed)


def _run_check(context: WorkerContext, row: Any, run: Callable[[], bool]) -> bool:
    if not run():
        context.publisher.publish(CheckSandbox(row.id, row.node_id))
    return True


def _run_claimed(
    context: WorkerContext,
    table: type[Row],
    row: Row,
    claim: Callable[[], Row | None],
    work: Callable[[WorkerContext, Row], None],
    give_up: Callable[[WorkerContext, Row], None],
) -> bool:
    while True:
        try:
            with context.renewer.holding(table, row):
                retry = _work(context, row, work, give_up)
                is_due = _release(context, table, row, retry)
        except LeaseLost:
            log.warning("lease_lost", table=table.__tablename__, row=row.id)
            metrics.count_lost_lease(table.__tablename__)
            return False
        if retry is not None or not is_due:
            return retry is None
        if (due := claim()) is None:
            return False
        row = due


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
    except Retry as retry:
        log.info("retry", row=row.id, attempt=row.attempt, why=str(retry))
        return retry
    except (EngineUnavailable, AgentServerUnreachable, WrongServer) as error:
        log.warning("unavailable", row=row.id, error=str(error))
        return Retry(str(error), seconds=UNAVAILABLE_SECONDS, counts=False)
    except MissingKey as error:
        log.warning("secret_key_missing", row=row.id, error=str(error))
        return Retry(str(error), seconds=UNAVAILABLE_SECONDS, counts=False)
    except UNAVAILABLE as error:
        log.warning("store_unavailable", row=row.id, error=type(error).__name__)
        return Retry(type(error).__name__, seconds=UNAVAILABLE_SECONDS, counts=False)
    except Exception as error:
        # A bug in this service: the trace shows code, not values, and the sweep requeues the row.
        log.exception("work_failed", row=row.id, attempt=row.attempt, error=type(error).__name__)
        metrics.count_failed_run(row.__tablename__)
        _reload(context, row)
        last = row.attempt + 1 >= context.settings.max_attempts
        return _work(context, row, give_up, None) if last and give_up else Retry(type(error).__name__)
    return None


def _reload(context: WorkerContext, row: Any) -> None:
    """Read the row again: it may have columns of a transaction that was rolled back, such as its attempts or stage."""
    table = type(row)
    names = tuple(table.__table__.columns.keys())
    with suppress(*UNAVAILABLE):
        for name, value in zip(names, leases.read(context.database, table, row.id, row.fence, names), strict=True):
            setattr(row, name, value)


def _release(context: WorkerContext, table: type[Row], row: Any, retry: Retry | None) -> bool:
    """Release the lease, unless the last write of the work did so. Returns whether the row is due."""
    # If the work failed, that write may have been rolled back.
    if retry is None and row.lease_until is None:
        return row.due_at is not None
    with context.database.transaction() as session:
        if retry is not None and retry.counts:
            leases.write(session, table, row.id, row.fence, attempt=row.attempt + 1)
        return leases.release(session, table, row.id, row.fence, _retry_at(row, retry))


def _retry_at(row: Any, retry: Retry | None) -> datetime | None:
    if retry is None:
        return None
    # A `due_at` that is much later would count as past (`leases.FARTHEST`).
    return after(backoff(row.attempt) if retry.seconds is None else min(retry.seconds, MAX_SECONDS))
