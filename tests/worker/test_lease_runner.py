"""Work on leased rows: after each run the row is requeued or no longer due."""

import logging
from collections.abc import Callable
from datetime import timedelta

import pytest
import time_machine
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shared.agent_server.errors import AgentServerUnreachable
from shared.clock import after, now
from shared.errors import LeaseLost
from shared.leasing import leases
from shared.leasing.limits import MAX_SECONDS
from shared.models import StartTask
from shared.observability import metrics
from tests.factories import ApiUser, make_start_task
from tests.worker.scenarios import another, assert_at_rest, change, row
from worker.context import WorkerContext
from worker.engine.protocol import EngineUnavailable
from worker.lease_runner import MAX_BACKOFF_SECONDS, UNAVAILABLE_SECONDS, Retry, backoff, run_leased


@pytest.fixture
def task_id(context: WorkerContext, user: ApiUser) -> str:
    return make_start_task(context.database, user).id


def run(context: WorkerContext, task_id: str, work: Callable[[StartTask], object] = lambda _task: None) -> StartTask:
    """Run work on the start task and return its row."""
    run_leased(context, StartTask, task_id, lambda _context, task: (work(task), None)[1], _never_give_up)
    return row(context, StartTask, task_id)


def _never_give_up(_context: WorkerContext, _task: StartTask) -> None:
    raise Retry("never")


def raising(error: BaseException) -> Callable[[StartTask], None]:
    def work(_task: StartTask) -> None:
        raise error

    return work


def counted(metric: str) -> float:
    return metrics.OWN.get_sample_value(f"agent_workspace_{metric}_total", {"table": "start_task"}) or 0.0


def seconds_until(task: StartTask) -> float:
    assert task.due_at
    assert (task.lease_owner, task.lease_until) == (None, None)
    return (task.due_at - now()) / timedelta(seconds=1)


def test_work_runs_once_under_a_lease(context: WorkerContext, task_id: str) -> None:
    seen: list[StartTask] = []
    assert_at_rest(run(context, task_id, lambda task: seen.append(row(context, StartTask, task.id))))
    assert [(task.lease_owner, task.due_at) for task in seen] == [("worker-1", None)]
    run(context, task_id, seen.append)
    assert len(seen) == 1


def test_row_leased_by_another_worker_is_skipped(context: WorkerContext, task_id: str) -> None:
    seen: list[StartTask] = []
    run(context, task_id, lambda _task: run(another(context), task_id, seen.append))
    assert seen == []


def test_row_due_again_during_the_work_runs_in_the_same_call(context: WorkerContext, task_id: str) -> None:
    fences: list[int] = []

    def work(task: StartTask) -> None:
        fences.append(task.fence)
        if len(fences) < 3:
            change(context, StartTask, task_id, due_at=now())

    assert_at_rest(run(context, task_id, work))
    assert fences == [1, 2, 3]


def test_backoff_grows_with_attempts(context: WorkerContext, task_id: str) -> None:
    with time_machine.travel(now(), tick=False):
        for attempt in range(9):
            task = run(context, task_id, raising(Retry("not yet")))
            assert (task.attempt, seconds_until(task)) == (attempt + 1, backoff(attempt))
    assert [backoff(attempt) for attempt in range(8)] == [0.5, 1, 2, 4, 8, 15, 15, 15]


def test_row_after_days_of_attempts_is_still_retried(context: WorkerContext, task_id: str) -> None:
    change(context, StartTask, task_id, attempt=100_000)
    with time_machine.travel(now(), tick=False):
        assert seconds_until(run(context, task_id, raising(Retry("not yet")))) == MAX_BACKOFF_SECONDS


def test_retry_may_set_its_own_delay_and_count_no_attempt(context: WorkerContext, task_id: str) -> None:
    with time_machine.travel(now(), tick=False):
        task = run(context, task_id, raising(Retry("later", seconds=7, counts=False)))
        assert (task.attempt, seconds_until(task)) == (0, 7)
        later = run(context, task_id, raising(Retry("much later", seconds=10 * MAX_SECONDS)))
        assert seconds_until(later) == MAX_SECONDS


@pytest.mark.parametrize(
    "error",
    [
        EngineUnavailable("ConnectionError"),
        AgentServerUnreachable("no answer"),
        OperationalError("SELECT", None, Exception("connection refused")),
        PoolTimeout("all connections are in use"),
    ],
)
def test_unavailable_dependency_counts_no_attempt(context: WorkerContext, task_id: str, error: Exception) -> None:
    with time_machine.travel(now(), tick=False):
        for _ in range(3):
            task = run(context, task_id, raising(error))
            assert (task.attempt, seconds_until(task)) == (0, UNAVAILABLE_SECONDS)


def test_bug_counts_an_attempt_and_is_logged_without_its_text(
    context: WorkerContext, task_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    failed = counted("runs_failed")
    task = run(context, task_id, raising(ValueError("the secret value")))
    assert (task.attempt, counted("runs_failed")) == (1, failed + 1)
    assert task.due_at
    records = "".join(repr(vars(record)) for record in caplog.records)
    assert "ValueError" in records
    assert "the secret value" not in records


def test_row_due_before_a_failure_is_not_delayed(context: WorkerContext, task_id: str) -> None:
    earlier = after(-1)

    def work(_task: StartTask) -> None:
        change(context, StartTask, task_id, due_at=earlier)
        raise Retry("not yet", seconds=10)

    assert run(context, task_id, work).due_at == earlier


@pytest.mark.parametrize("raises", [True, False])
def test_lost_lease_ends_the_work_without_an_error(context: WorkerContext, task_id: str, raises: bool) -> None:
    other, lost = another(context), counted("leases_lost")

    def work(_task: StartTask) -> None:
        change(context, StartTask, task_id, lease_until=now())
        with context.database.transaction() as session:
            leases.claim(session, StartTask, task_id, other.renewer.owner, 10)
        if raises:
            raise LeaseLost("the fence has moved on")

    found = run(context, task_id, work)
    assert (found.lease_owner, found.fence, found.attempt) == ("worker-2", 2, 0)
    assert counted("leases_lost") == lost + 1


def test_lease_of_a_dead_worker_expires(context: WorkerContext, task_id: str) -> None:
    with pytest.raises(SystemExit):
        run(context, task_id, raising(SystemExit()))
    seen: list[StartTask] = []
    run(another(context), task_id, seen.append)
    assert seen == []
    change(context, StartTask, task_id, lease_until=now())
    assert_at_rest(run(another(context), task_id, seen.append))
    assert len(seen) == 1


def test_last_attempt_calls_give_up(context: WorkerContext, task_id: str) -> None:
    given_up: list[str] = []
    for _ in range(context.settings.max_attempts):
        assert given_up == []
        run_leased(
            context,
            StartTask,
            task_id,
            lambda _context, _task: raising(ValueError())(_task),
            lambda _context, task: given_up.append(task.id),
        )
    assert given_up == [task_id]
    assert_at_rest(row(context, StartTask, task_id))


def test_bug_in_giving_up_leaves_the_row_due(context: WorkerContext, task_id: str) -> None:
    def fail(_context: WorkerContext, _task: StartTask) -> None:
        raise ValueError

    last = context.settings.max_attempts - 1
    change(context, StartTask, task_id, attempt=last)
    assert not run_leased(context, StartTask, task_id, fail, fail)
    task = row(context, StartTask, task_id)
    assert (task.attempt, seconds_until(task) > 0) == (last + 1, True)
