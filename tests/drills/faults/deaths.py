"""Kills at points of many operations, in one queue for all lanes, so that no lane is idle while work is left."""

from collections.abc import Sequence
from functools import cached_property

from tests.drills.faults.crash_states import Point
from tests.drills.faults.drill import die_at
from tests.drills.faults.lanes import Lanes
from tests.drills.faults.operations import ALL
from tests.drills.faults.recordings import Recordings
from tests.drills.faults.runner import Runner

Death = tuple[str, Point]


class Deaths:
    """Kills a process at points of these operations, once at each. The first call of `of` runs all of them.

    Args:
        names: the operations.
        most: the maximum number of points of each operation, evenly spread; 1: one point, alternately in the first half
            of an operation and in the second half of the next.
    """

    def __init__(self, lanes: Lanes, recordings: Recordings, names: Sequence[str], most: int) -> None:
        self._lanes, self._recordings = lanes, recordings
        self._names, self._most = names, most
        self._unrecorded: list[ExceptionGroup[Exception]] = []

    def of(self, name: str) -> dict[Point, bool]:
        """Whether a process died at each of the operation's points. The promise was kept after each.

        Raises:
            ExceptionGroup: the promise was not kept, or this operation could not be recorded.
        """
        outcomes = self._outcomes
        if not self._recordings.has(name):
            raise ExceptionGroup(f"{name} could not be recorded", self._unrecorded)
        mine = {point: outcomes[name, point] for point in self._points(name)}
        if failures := [outcome for outcome in mine.values() if isinstance(outcome, Exception)]:
            raise ExceptionGroup(f"{len(failures)} of {len(mine)} failed", failures)
        return {point: outcome is True for point, outcome in mine.items()}

    @cached_property
    def _outcomes(self) -> dict[Death, bool | Exception]:
        try:
            self._recordings.hits(self._names)
        except ExceptionGroup as failures:
            self._unrecorded.append(failures)
        recorded = [name for name in self._names if self._recordings.has(name)]
        # Start the longest first, so that no lane ends long after the others.
        recorded.sort(key=lambda name: self._recordings.seconds[name], reverse=True)
        deaths = [(name, point) for name in recorded for point in self._points(name)]
        return {deaths[number]: outcome for number, outcome in self._lanes.attempt(_die, deaths)}

    def _points(self, name: str) -> Sequence[Point]:
        points = self._recordings.points(name)
        return spread(points, self._most) if self._most > 1 else in_turn(points, self._names.index(name))


def _die(runner: Runner, death: Death) -> bool:
    name, point = death
    return die_at(runner, ALL[name], point)


def spread(points: Sequence[Point], most: int) -> Sequence[Point]:
    """The middle point of each of `most` equal parts. The first and last points matter least, so they are not taken."""
    middles = ((2 * number + 1) * len(points) // (2 * most) for number in range(most))
    return [points[middle] for middle in middles] if len(points) > most else points


def in_turn(points: Sequence[Point], turn: int) -> Sequence[Point]:
    """One of the two points of `spread`: the first for an even turn, the second for an odd one."""
    both = spread(points, 2)
    return [both[turn % len(both)]] if both else []
