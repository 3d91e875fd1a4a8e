"""The points of operations, recorded once for each database however many tests ask for them."""

import time
from collections.abc import Callable, Sequence

from tests.drills.faults.crash_states import Meeting, Point, all_points, crash_states
from tests.drills.faults.drill import record
from tests.drills.faults.lanes import Lanes
from tests.drills.faults.operation import Operation
from tests.drills.faults.operations import ALL
from tests.drills.faults.runner import Runner


def any_point(_point: str) -> bool:
    """Every point counts."""
    return True


class Recordings:
    """What the operations meet on one database, kept from the first time that one of them is recorded.

    Args:
        thorough: kill at all 2n points of n writes, not at the n + 1 that leave different worlds.
    """

    def __init__(self, lanes: Lanes, *, thorough: bool) -> None:
        self._lanes = lanes
        self._choose = all_points if thorough else crash_states
        self._met: dict[str, Sequence[Meeting]] = {}
        # How long each recording took.
        self.seconds: dict[str, float] = {}

    def has(self, name: str) -> bool:
        """Whether that operation was recorded."""
        return name in self._met

    def meetings(self, names: Sequence[str]) -> list[Sequence[Meeting]]:
        """All that each of these operations meets; those that are new are recorded, several at a time.

        Raises:
            ExceptionGroup: some could not be recorded.
        """
        # The last of the table wait longest, for an engine in trouble: no lane ends with one of them alone.
        new = [name for name in reversed(dict.fromkeys(names)) if name not in self._met]
        failures = []
        for number, outcome in self._lanes.attempt(_record, [ALL[name] for name in new]):
            if isinstance(outcome, Exception):
                failures.append(outcome)
            else:
                self._met[new[number]], self.seconds[new[number]] = outcome
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(new)} could not be recorded", failures)
        return [self._met[name] for name in names]

    def points(self, name: str, only: Callable[[str], bool] = any_point) -> list[Point]:
        """The points that a process is to die at in this operation.

        Args:
            only: of all of them, those to look at.
        """
        [met] = self.meetings([name])
        return self.choose(met, lambda point: ALL[name].counts(point) and only(point))

    def choose(self, meetings: Sequence[Meeting], counts: Callable[[str], bool] = any_point) -> list[Point]:
        """Those of the points that a process is to die at."""
        return self._choose(meetings, counts)


def _record(runner: Runner, operation: Operation) -> tuple[Sequence[Meeting], float]:
    began = time.monotonic()
    met = record(runner, operation)
    return met, time.monotonic() - began
