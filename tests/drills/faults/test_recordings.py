"""An operation is recorded once for all callers of its points; a failed recording is retried."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from tests.drills.faults.crash_states import Hit
from tests.drills.faults.operation import Operation
from tests.drills.faults.operations import OPERATIONS
from tests.drills.faults.recordings import Recordings

NAMES = {id(operation): name for name, operation in OPERATIONS.items()}
MET = [Hit("worker", f"job/1/{point}", "1", "t") for point in ("a.before", "a.after", "b.before", "b.after")]


class OneLane:
    """Records the requested operations, and fails for chosen ones."""

    def __init__(self, failing: Sequence[str] = ()) -> None:
        self.recorded: list[str] = []
        self.failing = set(failing)

    def attempt(self, _work: Callable[..., Any], tasks: Sequence[Operation]) -> Iterator[tuple[int, Any]]:
        for number, task in reversed(list(enumerate(tasks))):
            name = NAMES[id(task)]
            self.recorded.append(name)
            yield number, ValueError(name) if name in self.failing else (MET, 1.0)


def make(lane: OneLane, *, thorough: bool = False) -> Recordings:
    lanes: Any = lane
    return Recordings(lanes, thorough=thorough)


def test_operation_is_recorded_once_for_all_callers() -> None:
    lane = OneLane()
    recordings = make(lane)
    recordings.points("start")
    recordings.hits(["start", "pause", "start"])
    recordings.points("pause")
    assert lane.recorded == ["start", "pause"]


@pytest.mark.parametrize(("thorough", "count"), [(False, 3), (True, 4)])
def test_thorough_keeps_all_points(thorough: bool, count: int) -> None:
    assert len(make(OneLane(), thorough=thorough).points("start")) == count


def test_points_are_chosen_before_they_are_reduced() -> None:
    """Otherwise the point that represents another one might be left out."""
    points = make(OneLane()).points("start", lambda point: "/b." in point)
    assert [name for _, name in points] == ["job/1/b.before", "job/1/b.after"]


def test_recording_that_failed_is_tried_again_and_the_others_are_kept() -> None:
    lane = OneLane(failing=["pause"])
    recordings = make(lane)
    with pytest.raises(ExceptionGroup, match="1 of 2 could not be recorded"):
        recordings.hits(["start", "pause"])
    lane.failing.clear()
    assert recordings.hits(["start", "pause"]) == [MET, MET]
    assert sorted(lane.recorded) == ["pause", "pause", "start"]
