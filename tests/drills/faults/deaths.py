"""Deaths at points of many operations: all of them in one queue, so that no lane is idle while another one waits."""

import contextlib
from collections.abc import Sequence

from tests.drills.faults.crash_states import Point
from tests.drills.faults.drill import die_at
from tests.drills.faults.lanes import Lanes
from tests.drills.faults.operations import OPERATIONS
from tests.drills.faults.recordings import Recordings
from tests.drills.faults.runner import Runner

Death = tuple[str, Point]


class Deaths:
    """A process dies at points of these operations, once at each, when the first of them is asked for.

    Args:
        names: the operations.
        most: points of each, spread over all that it has.
    """

    def __init__(self, lanes: Lanes, recordings: Recordings, names: Sequence[str], most: int) -> None:
        self._lanes, self._recordings = lanes, recordings
        self._names, self._most = names, most
        self._outcomes: dict[Death, bool | Exception] = {}

    def of(self, name: str) -> dict[Point, bool]:
        """Whether a process died at each of the operation's points; after each the promise was kept.

        Raises:
            ExceptionGroup: the promise was not kept, or the points could not be recorded.
        """
        if not self._outcomes:
            self._kill_all()
        outcomes = {point: self._outcomes[name, point] for point in self._points(name)}
        failures = [outcome for outcome in outcomes.values() if isinstance(outcome, Exception)]
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(outcomes)} failed", failures)
        return {point: outcome is True for point, outcome in outcomes.items()}

    def _kill_all(self) -> None:
        with contextlib.suppress(ExceptionGroup):  # whoever asks for one that could not be recorded is told
            self._recordings.meetings(self._names)
        recorded = [name for name in self._names if self._recordings.has(name)]
        deaths = [(name, point) for name in recorded for point in self._points(name)]
        for number, outcome in self._lanes.attempt(_die, deaths):
            self._outcomes[deaths[number]] = outcome

    def _points(self, name: str) -> Sequence[Point]:
        return spread(self._recordings.points(name), self._most)


def _die(runner: Runner, death: Death) -> bool:
    name, point = death
    return die_at(runner, OPERATIONS[name], point)


def spread(points: Sequence[Point], most: int) -> Sequence[Point]:
    """The first, the last, and as many between them, equally far apart."""
    last = len(points) - 1
    return [points[round(number * last / (most - 1))] for number in range(most)] if last >= most else points
