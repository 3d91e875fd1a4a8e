"""Two deaths within one operation: a few pairs of each user operation. `make faults PAIRS=all` runs all."""

import random

import pytest

from tests import effort
from tests.drills.faults.crash_states import Point
from tests.drills.faults.drill import die_twice, record_recovery
from tests.drills.faults.lanes import Lanes
from tests.drills.faults.operations import OPERATIONS
from tests.drills.faults.pairs import USER_OPERATIONS, Pair
from tests.drills.faults.recordings import Recordings
from tests.drills.faults.runner import Runner

SEED = 1
FIRSTS, SECONDS = effort.choose(quick=1, change=1, thorough=2), 2


@pytest.mark.nightly  # runs at night only: for each change, the faults of chaos hit recoveries
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stores", ["sqlite"], indirect=True)
def test_promise_is_kept_through_two_deaths(lanes: Lanes, recordings: Recordings) -> None:
    chance = random.Random(SEED)
    recordings.hits(USER_OPERATIONS)
    firsts = [(name, first) for name in USER_OPERATIONS for first in chance.sample(recordings.points(name), FIRSTS)]
    recoveries = lanes.spread(lambda runner, it: record_recovery(runner, OPERATIONS[it[0]], it[1]), firsts)
    pairs = [
        Pair(name, first, second)
        for (name, first), met in zip(firsts, recoveries, strict=True)
        for second in sample(chance, recordings.choose(met), SECONDS)
    ]
    assert len(pairs) > len(firsts)
    died = lanes.spread(_die, pairs)
    # If the points are in two processes, both are armed from the beginning, so neither can be passed first.
    assert [str(pair) for pair, done in zip(pairs, died, strict=True) if not done] == []


def sample(chance: random.Random, items: list[Point], most: int) -> list[Point]:
    return chance.sample(items, min(most, len(items)))


def _die(runner: Runner, pair: Pair) -> bool:
    return die_twice(runner, OPERATIONS[pair.operation], pair.first, pair.second)
