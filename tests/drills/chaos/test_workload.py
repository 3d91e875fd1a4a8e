"""The choice of the next request of a chaos run's client."""

import random
from collections import Counter

from tests.drills.chaos.workload.workload import MISSING_WEIGHT, choose

CHOICES = 2000


def _count(missing: set[str]) -> Counter[str]:
    chosen: Counter[str] = Counter()
    acts = {
        "often": (99.0, lambda: chosen.update(["often"])),
        "rare": (1.0, lambda: chosen.update(["rare"])),
    }
    rng = random.Random(1)
    for _ in range(CHOICES):
        choose(rng, acts, missing)()
    return chosen


def test_act_is_chosen_by_its_weight() -> None:
    assert _count(set())["rare"] < CHOICES / 50


def test_act_that_never_succeeded_is_likelier() -> None:
    assert _count({"rare"})["rare"] > _count(set())["rare"] * MISSING_WEIGHT / 2
