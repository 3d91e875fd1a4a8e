"""`plan` under every event between two of its actions; and a check that the walk finds wrong plans."""

from random import Random

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.effort import bounds
from tests.worker.mutants import PLANS
from tests.worker.sandboxes.plan_walk import Walk
from worker.sandboxes.planner import plan

BOUNDS = bounds(
    # For a change, fewer than at night: the long walks take 120,000 steps in the time of a thousand of these.
    max_examples=50,
    # The duration of an example depends on the load of the machine, and no walk is short.
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example],
)
RUNS = 60_000


@BOUNDS
@given(dice=st.randoms(use_true_random=False))
def test_short_random_walks_reach_the_desired_state(dice: Random) -> None:
    Walk(plan, dice).go(15)


@pytest.mark.parametrize("seed", [1, 2])
def test_long_random_walks_reach_the_desired_state(seed: int) -> None:
    walk = Walk(plan, Random(seed))
    walk.go(RUNS)
    assert walk.actions > RUNS


@pytest.mark.parametrize("wrong", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("seed", range(10))
def test_random_walks_detect_wrong_plans(wrong: object, seed: int) -> None:
    with pytest.raises(AssertionError):
        Walk(wrong, Random(seed)).go(2000)  # type: ignore[arg-type]
