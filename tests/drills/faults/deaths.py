"""Deaths at points of many operations: all of them in one queue, so that no lane is idle while another one waits."""

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
    """A process dies at points of these operations, once at each. The first call of `of` kills for all of them.

    Args:
        names: the operations.
        most: the most points of each, spread over all that it has; 1: one in its first half, of the next operation one
            in its second half, and so on in turn.
    """

    def __init__(self, lanes: Lanes, recordings: Recordings, names: Sequence[str], most: int) -> None:
        self._lanes, self._recordings = lanes, recordings
        self._names, self._most = names, most
        self._unrecorded: list[ExceptionGroup[Exception]] = []

    def of(self, name: str) -> dict[Point, bool]:
        """Whether a process died at each of the operation's points; after each the promise was kept.

        Raises:
            ExceptionGroup: the promise was not kept, or operations could not be recorded, this one among them.
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
            self._recordings.meetings(self._names)
        except ExceptionGroup as failures:
            self._unrecorded.append(failures)
        recorded = [name for name in self._names if self._recordings.has(name)]
        # No lane ends with a long one alone.
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
    """The middle of each of so many equal parts: what comes before the first write, or after the last, breaks least."""
    middles = ((2 * number + 1) * len(points) // (2 * most) for number in range(most))
    return [points[middle] for middle in middles] if len(points) > most else points


def in_turn(points: Sequence[Point], turn: int) -> Sequence[Point]:
    """One of the two that `spread` gives, the first at an even turn."""
    both = spread(points, 2)
    return [both[turn % len(both)]] if both else []
