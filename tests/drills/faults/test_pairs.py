"""Two deaths within one operation: a few pairs of each user operation. `make faults PAIRS=all` runs all."""

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from tests import effort
from tests.drills.faults.crash_states import Point
from tests.drills.faults.drill import die_twice, record_recovery
from tests.drills.faults.lanes import Lanes
from tests.drills.faults.operations import OPERATIONS
from tests.drills.faults.pair_states import START, Deaths, group_pairs
from tests.drills.faults.pairs import USER_OPERATIONS, Pair, record_recoveries
from tests.drills.faults.recordings import Recordings
from tests.drills.faults.runner import Runner
from tests.drills.faults.snapshots import Snapshot, take_snapshot

SEED = 1
FIRSTS, SECONDS = effort.choose(quick=1, change=1, thorough=2), 2
# The number of states whose pairs are compared, for each operation.
STATES = 6


@pytest.mark.nightly  # not for each change, because the chaos run's faults hit recoveries, too
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stores", ["sqlite"], indirect=True)
def test_promise_is_kept_through_two_deaths(lanes: Lanes, recordings: Recordings) -> None:
    chance = random.Random(SEED)
    recordings.hits(USER_OPERATIONS)
    firsts = [(name, first) for name in USER_OPERATIONS for first in chance.sample(recordings.points(name), FIRSTS)]
    recoveries = lanes.spread(lambda runner, it: record_recovery(runner, OPERATIONS[it[0]], it[1]), firsts)
    pairs = [
        Pair(name, first, second)
        for (name, first), found in zip(firsts, recoveries, strict=True)
        for second in sample(chance, recordings.choose(found), SECONDS)
    ]
    assert len(pairs) > len(firsts)
    died = lanes.spread(_die, pairs)
    # Points in two processes are both armed from the beginning, so neither can be passed before it is armed.
    assert [str(pair) for pair, done in zip(pairs, died, strict=True) if not done] == []


def sample(chance: random.Random, items: list[Point], most: int) -> list[Point]:
    return chance.sample(items, min(most, len(items)))


def _die(runner: Runner, pair: Pair) -> bool:
    return die_twice(runner, OPERATIONS[pair.operation], pair.first, pair.second)


@pytest.mark.nightly  # a check of the drill, not of the service
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("stores", ["sqlite"], indirect=True)
def test_pairs_of_one_state_have_the_same_result(lanes: Lanes, recordings: Recordings) -> None:
    chance = random.Random(SEED)
    for operation in USER_OPERATIONS:
        recoveries, problems = record_recoveries(lanes, recordings, operation)
        assert problems == []
        groups = [pairs for pairs in group_pairs(recoveries, recordings.choose) if is_compared(pairs)]
        chosen = [chance.sample(pairs, 2) for pairs in chance.sample(groups, STATES)]

        def leave(runner: Runner, pair: Deaths, name: str = operation) -> Snapshot:
            return snapshot_after(runner, name, pair)

        left = lanes.spread(leave, [pair for pairs in chosen for pair in pairs])
        assert [compare(one, other) for one, other in zip(left[::2], left[1::2], strict=True)] == [{}] * STATES
        # Snapshots of different states must differ; otherwise the comparison above would prove nothing.
        assert any(compare(one, other) for one, other in pairwise(left[::2]))


def is_compared(pairs: Sequence[Deaths]) -> bool:
    """Whether a state has several pairs that leave the same.

    Those within a process's start are one by convention. After a worker's publish, the published job may begin before
    the worker has died.
    """
    second = pairs[0][1][1]
    return len(pairs) > 1 and not second.startswith(f"{START}/") and not second.endswith("/broker.publish.after")


def compare(one: Snapshot, other: Snapshot) -> dict[str, tuple[Any, Any]]:
    """What only one of two snapshots has, and what only the other has, by kind."""
    return {kind: (one[kind] - other[kind], other[kind] - one[kind]) for kind in one if one[kind] != other[kind]}


def snapshot_after(runner: Runner, operation: str, pair: Deaths) -> Snapshot:
    """Run a pair; return what the second death left."""
    recovery, second = pair
    taken: list[Snapshot] = []
    died = die_twice(
        runner,
        OPERATIONS[operation],
        recovery.first,
        second,
        look=lambda runner: taken.append(take_snapshot(runner)),
    )
    assert died, f"{operation}: {recovery.first}, then {second}"
    return taken[-1]
