"""A process dies at each point of each operation, once, and the promise is kept all the same."""

from collections.abc import Callable

import pytest

from tests.drills.faults.crash_states import Point
from tests.drills.faults.drill import die_at
from tests.drills.faults.lanes import Lanes
from tests.drills.faults.operations import OPERATIONS
from tests.drills.faults.recordings import Recordings, any_point
from tests.drills.faults.runner import Runner
from tests.services.stores import PostgresStores, Stores

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", OPERATIONS)
def test_promise_is_kept(
    lanes: Lanes,
    recordings: Recordings,
    stores: Stores,
    name: str,
    record_property: Callable[[str, object], None],
) -> None:
    """All crash states on SQLite; on PostgreSQL those where the database makes a difference."""
    operation = OPERATIONS[name]

    def kill(runner: Runner, point: Point) -> bool:
        return die_at(runner, operation, point)

    assert recordings.points(name)
    points = recordings.points(name, is_commit if isinstance(stores, PostgresStores) else any_point)
    died = lanes.spread(kill, points)
    record_property("points", points)
    assert [point for point, done in zip(points, died, strict=True) if not done] == []


def is_commit(point: str) -> bool:
    return "/database.commit." in point
