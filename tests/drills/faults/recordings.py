"""The points of operations, recorded once for each database and shared by all tests."""

import time
from collections.abc import Callable, Sequence

from tests.drills.faults.crash_states import Hit, Point, all_points, crash_states
from tests.drills.faults.drill import record
from tests.drills.faults.lanes import Lanes
from tests.drills.faults.operation import Operation
from tests.drills.faults.operations import ALL
from tests.drills.faults.runner import Runner


def any_point(_point: str) -> bool:
    """Accept every point."""
    return True


class Recordings:
    """The points that operations reach on one database, cached from their first recording.

    Args:
        thorough: kill at all 2n points of n writes, not only at the n + 1 that leave different states.
    """

    def __init__(self, lanes: Lanes, *, thorough: bool) -> None:
        self._lanes = lanes
        self._choose = all_points if thorough else crash_states
        self._hits: dict[str, Sequence[Hit]] = {}
        # The duration of each recording.
        self.seconds: dict[str, float] = {}

    def has(self, name: str) -> bool:
        """Whether the operation is recorded."""
        return name in self._hits

    def hits(self, names: Sequence[str]) -> list[Sequence[Hit]]:
        """The hits of each of these operations; new ones are recorded in parallel.

        Raises:
            ExceptionGroup: some operations could not be recorded.
        """
        # Start the last operations of the table first: they take longest, because their engine fails.
        new = [name for name in reversed(dict.fromkeys(names)) if name not in self._hits]
        failures = []
        for number, outcome in self._lanes.attempt(_record, [ALL[name] for name in new]):
            if isinstance(outcome, Exception):
                failures.append(outcome)
            else:
                self._hits[new[number]], self.seconds[new[number]] = outcome
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(new)} could not be recorded", failures)
        return [self._hits[name] for name in names]

    def points(self, name: str, only: Callable[[str], bool] = any_point) -> list[Point]:
        """The points of this operation at which a process is killed.

        Args:
            only: a filter of the points.
        """
        [hits] = self.hits([name])
        return self.choose(hits, lambda point: ALL[name].counts(point) and only(point))

    def choose(self, hits: Sequence[Hit], counts: Callable[[str], bool] = any_point) -> list[Point]:
        """Choose the points at which a process is killed."""
        return self._choose(hits, counts)


def _record(runner: Runner, operation: Operation) -> tuple[Sequence[Hit], float]:
    began = time.monotonic()
    hits = record(runner, operation)
    return hits, time.monotonic() - began
