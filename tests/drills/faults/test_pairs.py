"""A second death in what follows the first: a few pairs of each wish. `make faults PAIRS=all` tries them all."""

import random

import pytest

from tests.drills.faults.drill import die_twice, record, record_recovery
from tests.drills.faults.lanes import Lanes
from tests.drills.faults.operations import OPERATIONS
from tests.drills.faults.pairs import WISHES, Pair
from tests.drills.faults.runner import Runner

SEED = 1
FIRSTS, SECONDS = 2, 2


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stores", ["sqlite"], indirect=True)
def test_promise_is_kept_through_two_deaths(lanes: Lanes) -> None:
    chance = random.Random(SEED)
    points = lanes.spread(record, [OPERATIONS[name] for name in WISHES])
    firsts = [
        (name, first) for name, found in zip(WISHES, points, strict=True) for first in chance.sample(found, FIRSTS)
    ]
    seconds = lanes.spread(lambda runner, it: record_recovery(runner, OPERATIONS[it[0]], it[1]), firsts)
    pairs = [
        Pair(name, first, second)
        for (name, first), found in zip(firsts, seconds, strict=True)
        for second in chance.sample(found, min(SECONDS, len(found)))
    ]
    died = lanes.spread(_die, pairs)
    missed = [pair for pair, done in zip(pairs, died, strict=True) if not done]
    # The other process does not wait for the first one's death: it may have passed its point by then.
    assert [str(pair) for pair in missed if pair.first[0] == pair.second[0]] == []
    assert len(missed) < len(pairs) / 2


def _die(runner: Runner, pair: Pair) -> bool:
    return die_twice(runner, OPERATIONS[pair.operation], pair.first, pair.second)
