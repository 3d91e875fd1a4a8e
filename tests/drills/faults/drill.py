"""One execution of an operation: with its points recorded, or with a process killed at one or two of them."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from shared.clock import now
from tests.drills.faults.crash_states import Hit, Point
from tests.drills.faults.operation import Operation
from tests.drills.faults.runner import PROCESSES, Runner
from tests.drills.faults.user_requests import LONG, set_key_use

# A point may not be reached if a routine was held in the middle of its round.
TRIES = 4
# Some recoveries reach no point: a process that dies before its commit leaves nothing to do, and the API sends no
# request to an agent server twice. Nothing is due then, and the restarted process is idle for this time.
IDLE_SECONDS = 3.0


def record(runner: Runner, operation: Operation) -> list[Hit]:
    """Record every hit of the operation's points, in order in each process."""
    return _until_at_rest(lambda: _record(runner, operation))


def die_at(runner: Runner, operation: Operation, point: Point) -> bool:
    """Kill a process at a point and check the promise; return whether the process reached the point."""
    return _until_reached(lambda: _die_at(runner, operation, point))


def record_recovery(runner: Runner, operation: Operation, first: Point) -> list[Hit]:
    """Record the hits after a death at the first point, of the restarted process and of the other one; maybe none."""
    return _until_at_rest(lambda: _record_recovery(runner, operation, first))


def die_twice(
    runner: Runner, operation: Operation, first: Point, second: Point, look: Callable[[Runner], None] | None = None
) -> bool:
    """Kill a process at each of two points and check the promise; return whether the second point was reached too.

    The second death hits the same process during its recovery, or the other process when it reaches its point.

    Args:
        look: called after the second death, before the restart.
    """
    return _until_reached(lambda: _die_twice(runner, operation, first, second, look))


def _until_reached(attempt: Callable[[], bool]) -> bool:
    return any(attempt() for _ in range(TRIES))


def _until_at_rest(attempt: Callable[[], list[Hit] | None]) -> list[Hit]:
    """The hits of the first attempt that settled while the routines were held."""
    for _ in range(TRIES):
        if (hits := attempt()) is not None:
            return hits
    raise AssertionError("the operation does not settle while other routines are held")


def _record(runner: Runner, operation: Operation) -> list[Hit] | None:
    attempt = _Attempt(runner, operation)
    hits = runner.record(attempt.act, operation.owns)
    attempt.finish()
    return hits


def _record_recovery(runner: Runner, operation: Operation, first: Point) -> list[Hit] | None:
    attempt = _Attempt(runner, operation)
    act = partial(_die_and_recover, runner, operation, first, attempt.act)
    hits = runner.record(act, operation.recovery, idle_seconds=IDLE_SECONDS)
    attempt.finish()
    return hits


def _die_at(runner: Runner, operation: Operation, point: Point) -> bool:
    attempt = _Attempt(runner, operation)
    died = runner.dies_at(*point, attempt.act)
    _restart(runner, [point[0]] if died else [])
    attempt.finish()
    return died


def _die_twice(
    runner: Runner, operation: Operation, first: Point, second: Point, look: Callable[[Runner], None] | None
) -> bool:
    attempt = _Attempt(runner, operation)
    # The other process may reach its point before the first death, so arm it now.
    elsewhere = first[0] != second[0]
    if elsewhere:
        runner.arm(*second)
    died = runner.dies_at(*first, attempt.act)
    if died:
        if not elsewhere:
            runner.arm(*second)
        _recover(runner, operation, first)
        died = runner.await_death(second[0])
    else:
        runner.disarm(second[0])
    if died and look is not None:
        look(runner)
    _restart(runner, [name for name in PROCESSES if runner.is_dead(name)])
    attempt.finish()
    return died


class _Attempt:
    """One execution of the operation: its subject, its act and its checks."""

    def __init__(self, runner: Runner, operation: Operation) -> None:
        self._runner, self._operation = runner, operation
        runner.adopt(operation.settings)
        # Pretend a recent use of the key, so that the service does not record a use: that is an operation of its own.
        set_key_use(runner, now() + LONG)
        runner.hold(operation.holds)
        self._subject = operation.prepare(runner)

    def act(self) -> None:
        """Execute the operation."""
        self._operation.act(self._runner, self._subject)
        if self._operation.releases:
            self._runner.hold(self._operation.holds - self._operation.releases)

    def finish(self) -> None:
        """Check the promise, and clean up."""
        self._runner.hold()
        self._runner.await_agreement()
        self._operation.verify(self._runner, self._subject)
        self._runner.clear()


def _die_and_recover(runner: Runner, operation: Operation, first: Point, act: Callable[[], None]) -> None:
    """Drop the hits that led to the death: those of the dead process, and those of the API before a worker's death.

    A worker may execute the API's request before this process notices the API's death. Those hits are kept, because
    they belong to the recovery.
    """
    assert runner.dies_at(*first, act), f"{first} was not reached"
    runner.forget({first[0], "api"})
    _recover(runner, operation, first)


def _recover(runner: Runner, operation: Operation, first: Point) -> None:
    """Restart the process with the other routines still held, so that the sweep must find the unfinished work.

    A routine that is itself the operation is not held: before its first write, it alone knows of the work.
    """
    runner.hold({"events", "resync", "network"} - operation.releases)
    if "events" in operation.releases:
        _await_next_second()
    runner.start_process(first[0])


def _await_next_second() -> None:
    """Wait until the engine replays no event of the operation.

    A subscription begins with the current second. If that is the operation's, its event is replayed, and the status
    check that follows races with the sweep's job: which of the two reaches its points would differ from run to run.
    """
    time.sleep(1 - time.time() % 1)


def _restart(runner: Runner, dead: Sequence[str]) -> None:
    began = time.monotonic()
    runner.hold()
    for process in dead:
        runner.start_process(process)
    runner.await_agreement(closely=False)
    if dead:
        runner.recoveries.append(time.monotonic() - began)
