"""Turns on a row: whatever becomes of one, the row is looked at again or wants nothing."""

import logging
from collections.abc import Callable
from datetime import timedelta

import pytest
import time_machine
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shared import leases
from shared.clock import after, now
from shared.errors import LeaseLost
from shared.models import StartTask
from tests.factories import Person, make_start_task
from tests.worker.scenes import another, assert_at_rest, change, row
from worker.agent_server_errors import AgentServerUnreachable
from worker.containers import EngineUnavailable
from worker.parts import Parts
from worker.turns import LONGEST_BACKOFF_SECONDS, UNAVAILABLE_SECONDS, TryAgain, backoff, take_turns


@pytest.fixture
def task_id(parts: Parts, user: Person) -> str:
    return make_start_task(parts.database, user).id


def turn(parts: Parts, task_id: str, work: Callable[[StartTask], object] = lambda _task: None) -> StartTask:
    """Take turns on the task and show its row."""
    take_turns(parts, StartTask, task_id, lambda _parts, task: (work(task), None)[1], _refuse_to_give_up)
    return row(parts, StartTask, task_id)


def _refuse_to_give_up(_parts: Parts, _task: StartTask) -> None:
    raise TryAgain("never")


def raising(error: BaseException) -> Callable[[StartTask], None]:
    def work(_task: StartTask) -> None:
        raise error

    return work


def seconds_until(task: StartTask) -> float:
    assert task.due_at
    assert (task.lease_owner, task.lease_until) == (None, None)
    return (task.due_at - now()) / timedelta(seconds=1)


def test_work_is_done_once_under_a_lease(parts: Parts, task_id: str) -> None:
    seen: list[StartTask] = []
    assert_at_rest(turn(parts, task_id, lambda task: seen.append(row(parts, StartTask, task.id))))
    assert [(task.lease_owner, task.due_at) for task in seen] == [("worker-1", None)]
    turn(parts, task_id, seen.append)
    assert len(seen) == 1


def test_row_that_another_holds_is_left_to_it(parts: Parts, task_id: str) -> None:
    seen: list[StartTask] = []
    turn(parts, task_id, lambda _task: turn(another(parts), task_id, seen.append))
    assert seen == []


def test_wish_that_arrives_during_the_work_is_taken_in_the_same_call(parts: Parts, task_id: str) -> None:
    fences: list[int] = []

    def work(task: StartTask) -> None:
        fences.append(task.fence)
        if len(fences) < 3:
            change(parts, StartTask, task_id, due_at=now())

    assert_at_rest(turn(parts, task_id, work))
    assert fences == [1, 2, 3]


def test_attempts_wait_longer_and_longer(parts: Parts, task_id: str) -> None:
    with time_machine.travel(now(), tick=False):
        for attempt in range(9):
            task = turn(parts, task_id, raising(TryAgain("not yet")))
            assert (task.attempt, seconds_until(task)) == (attempt + 1, backoff(attempt))
    assert [backoff(attempt) for attempt in range(8)] == [0.5, 1, 2, 4, 8, 15, 15, 15]


def test_row_that_was_tried_for_days_is_still_tried(parts: Parts, task_id: str) -> None:
    change(parts, StartTask, task_id, attempt=100_000)
    with time_machine.travel(now(), tick=False):
        assert seconds_until(turn(parts, task_id, raising(TryAgain("not yet")))) == LONGEST_BACKOFF_SECONDS


def test_turn_may_name_its_own_pause_and_not_count(parts: Parts, task_id: str) -> None:
    with time_machine.travel(now(), tick=False):
        task = turn(parts, task_id, raising(TryAgain("later", seconds=7, counts=False)))
        assert (task.attempt, seconds_until(task)) == (0, 7)


@pytest.mark.parametrize(
    "error",
    [
        EngineUnavailable("ConnectionError"),
        AgentServerUnreachable("no answer"),
        OperationalError("SELECT", None, Exception("connection refused")),
        PoolTimeout("all connections are in use"),
    ],
)
def test_absence_of_others_is_no_attempt(parts: Parts, task_id: str, error: Exception) -> None:
    with time_machine.travel(now(), tick=False):
        for _ in range(3):
            task = turn(parts, task_id, raising(error))
            assert (task.attempt, seconds_until(task)) == (0, UNAVAILABLE_SECONDS)


def test_defect_costs_an_attempt_and_is_told_without_its_words(
    parts: Parts, task_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    task = turn(parts, task_id, raising(ValueError("the secret value")))
    assert task.attempt == 1
    assert task.due_at
    records = "".join(repr(vars(record)) for record in caplog.records)
    assert "ValueError" in records
    assert "the secret value" not in records


def test_wish_that_arrives_before_a_failure_is_not_put_off(parts: Parts, task_id: str) -> None:
    asked = after(-1)

    def work(_task: StartTask) -> None:
        change(parts, StartTask, task_id, due_at=asked)
        raise TryAgain("not yet", seconds=10)

    assert turn(parts, task_id, work).due_at == asked


@pytest.mark.parametrize("tells", [True, False])
def test_lost_lease_ends_the_turn_quietly(parts: Parts, task_id: str, tells: bool) -> None:
    other = another(parts)

    def work(_task: StartTask) -> None:
        change(parts, StartTask, task_id, lease_until=now())
        with parts.database.transaction() as session:
            leases.claim(session, StartTask, task_id, other.keeper.owner, 10)
        if tells:
            raise LeaseLost("the fence has moved on")

    found = turn(parts, task_id, work)
    assert (found.lease_owner, found.fence, found.attempt) == ("worker-2", 2, 0)


def test_worker_that_dies_leaves_its_lease_to_run_out(parts: Parts, task_id: str) -> None:
    with pytest.raises(SystemExit):
        turn(parts, task_id, raising(SystemExit()))
    seen: list[StartTask] = []
    turn(another(parts), task_id, seen.append)
    assert seen == []
    change(parts, StartTask, task_id, lease_until=now())
    assert_at_rest(turn(another(parts), task_id, seen.append))
    assert len(seen) == 1


def test_last_attempt_is_followed_by_giving_up(parts: Parts, task_id: str) -> None:
    given_up: list[str] = []
    for _ in range(parts.settings.most_attempts):
        assert given_up == []
        take_turns(
            parts,
            StartTask,
            task_id,
            lambda _parts, _task: raising(ValueError())(_task),
            lambda _parts, task: given_up.append(task.id),
        )
    assert given_up == [task_id]
    assert_at_rest(row(parts, StartTask, task_id))
