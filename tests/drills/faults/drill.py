"""One operation, done once: with its points recorded, or with a process that dies at one of them, or at two."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from shared.clock import now
from tests.drills.faults.asking import LONG, use_key_at
from tests.drills.faults.crash_states import Meeting, Point
from tests.drills.faults.operation import Operation
from tests.drills.faults.runner import PROCESSES, Runner

# A point may be missed when another routine is in the middle of its round while it is told to hold back.
TRIES = 4


def record(runner: Runner, operation: Operation) -> list[Meeting]:
    """Every meeting of one of the operation's points, in order in each process."""
    return _until_at_rest(lambda: _record(runner, operation))


def die_at(runner: Runner, operation: Operation, point: Point) -> bool:
    """Whether a process died there; then all is as promised again."""
    return _until_met(lambda: _die_at(runner, operation, point))


def record_recovery(runner: Runner, operation: Operation, first: Point) -> list[Meeting]:
    """The meetings of points after a death at the first: by the process that is restarted, and by the other."""
    return _until_at_rest(lambda: _record_recovery(runner, operation, first))


def die_twice(runner: Runner, operation: Operation, first: Point, second: Point) -> bool:
    """Whether a process died at the second point too: the same one in its recovery, the other one as it comes by."""
    return _until_met(lambda: _die_twice(runner, operation, first, second))


def _until_met(attempt: Callable[[], bool]) -> bool:
    return any(attempt() for _ in range(TRIES))


def _until_at_rest(attempt: Callable[[], list[Meeting]]) -> list[Meeting]:
    """What was met in the first attempt that has come to rest by itself."""
    for _ in range(TRIES):
        if met := attempt():
            return met
    raise AssertionError("it never comes to rest while others are held back")


def _record(runner: Runner, operation: Operation) -> list[Meeting]:
    attempt = _Attempt(runner, operation)
    met = runner.record(attempt.act, operation.owns)
    attempt.conclude()
    return met


def _record_recovery(runner: Runner, operation: Operation, first: Point) -> list[Meeting]:
    attempt = _Attempt(runner, operation)
    met = runner.record(partial(_die_and_recover, runner, first, attempt.act), operation.recovery)
    attempt.conclude()
    return met


def _die_at(runner: Runner, operation: Operation, point: Point) -> bool:
    attempt = _Attempt(runner, operation)
    died = runner.dies_at(*point, attempt.act)
    _restart(runner, [point[0]] if died else [])
    attempt.conclude()
    return died


def _die_twice(runner: Runner, operation: Operation, first: Point, second: Point) -> bool:
    attempt = _Attempt(runner, operation)
    # The other process does not wait for the first death: it is to die at its point whenever it comes by.
    elsewhere = first[0] != second[0]
    if elsewhere:
        runner.arm(*second)
    died = runner.dies_at(*first, attempt.act)
    if died:
        if not elsewhere:
            runner.arm(*second)
        _recover(runner, first)
        died = runner.await_death(second[0])
    else:
        runner.disarm(second[0])
    _restart(runner, [name for name in PROCESSES if runner.is_dead(name)])
    attempt.conclude()
    return died


class _Attempt:
    """One time that the operation is done: to what, and how it ends."""

    def __init__(self, runner: Runner, operation: Operation) -> None:
        self._runner, self._operation = runner, operation
        runner.adopt(operation.settings)
        # Writing down its use is an operation of its own.
        use_key_at(runner, now() + LONG)
        runner.hold(operation.holds)
        self._subject = operation.prepare(runner)

    def act(self) -> None:
        """Do it."""
        self._operation.act(self._runner, self._subject)
        if self._operation.lets:
            self._runner.hold(self._operation.holds - self._operation.lets)

    def conclude(self) -> None:
        """See the promise kept, and leave nothing."""
        self._runner.hold()
        self._runner.await_agreement()
        self._operation.verify(self._runner, self._subject)
        self._runner.clear()


def _die_and_recover(runner: Runner, first: Point, act: Callable[[], None]) -> None:
    """Forget what the dead process has met, and what the API did before the death of a worker: that led to the death.

    A worker may carry out what the API asked for before the API's death is noticed: that belongs to the recovery.
    """
    assert runner.dies_at(*first, act), f"{first} was not met"
    runner.forget({first[0], "api"})
    _recover(runner, first)


def _recover(runner: Runner, first: Point) -> None:
    """The sweep must find what was broken off; what would do so beside it is still held back."""
    runner.hold(("events", "resync", "network"))
    runner.start_process(first[0])


def _restart(runner: Runner, dead: Sequence[str]) -> None:
    began = time.monotonic()
    runner.hold()
    for process in dead:
        runner.start_process(process)
    runner.await_agreement(closely=False)
    if dead:
        runner.recoveries.append(time.monotonic() - began)
