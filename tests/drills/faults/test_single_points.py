"""The promise is kept after a process dies at any point of an operation.

Each change is tested at one point of each operation on one database; the nightly tests take every point on both.
"""

from collections.abc import Callable

import pytest

from tests import effort
from tests.drills.faults.deaths import Deaths, in_turn, spread
from tests.drills.faults.lanes import Lanes
from tests.drills.faults.operations import ALL, OPERATIONS
from tests.drills.faults.recordings import Recordings
from tests.services.stores import PostgresStores, Stores

TEST = "tests/drills/faults/test_single_points.py::test_promise_is_kept"
# The number of points of each operation. A crash and its recovery take about a second.
POINTS = effort.choose(quick=1, change=1, thorough=10_000)


@pytest.fixture(scope="session")
def deaths(request: pytest.FixtureRequest, lanes: Lanes, recordings: Recordings, stores: Stores) -> Deaths:
    """The kills of the operations that were selected on this database."""
    database = "postgresql" if isinstance(stores, PostgresStores) else "sqlite"
    found = [item for item in request.session.items if item.nodeid.startswith(f"{TEST}[{database}-")]
    return Deaths(lanes, recordings, [item.callspec.params["name"] for item in found], POINTS)  # type: ignore[attr-defined]


# The first test runs the kills of all.
@pytest.mark.timeout(effort.choose(quick=900, change=900, thorough=3000))
@pytest.mark.parametrize("name", ALL if effort.is_thorough() else OPERATIONS)
def test_promise_is_kept(deaths: Deaths, name: str, record_property: Callable[[str, object], None]) -> None:
    died = deaths.of(name)
    assert died
    record_property("points", list(died))
    assert [point for point, done in died.items() if not done] == []


@pytest.mark.parametrize(
    ("total", "expected"), [(0, []), (1, [0]), (2, [0, 1]), (3, [0, 2]), (4, [1, 3]), (10, [2, 7]), (100, [25, 75])]
)
def test_points_of_a_change_are_spread(total: int, expected: list[int]) -> None:
    points = [("worker", str(number)) for number in range(total)]
    assert list(spread(points, 2)) == [points[number] for number in expected]
    assert list(spread(points, 1000)) == points


def test_points_of_a_change_alternate_between_the_halves() -> None:
    points = [("worker", str(number)) for number in range(8)]
    assert [list(in_turn(points, turn)) for turn in range(3)] == [[points[2]], [points[6]], [points[2]]]
    assert list(in_turn(points[:1], 1)) == points[:1]
    assert list(in_turn([], 1)) == []
