"""The choice of a client's next request in a chaos run, and the sandboxes whose starts got no response."""

import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

from shared.states import Desired
from tests.drills.chaos.site import Site
from tests.drills.chaos.workload.fleet import Fleet
from tests.drills.chaos.workload.sandboxes import IDLE_DEADLINES, MAX_AGE_SECONDS, Sandboxes
from tests.drills.chaos.workload.workload import MISSING_WEIGHT, Workload, choose

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


def test_action_is_chosen_by_its_weight() -> None:
    assert _count(set())["rare"] < CHOICES / 50


def test_action_that_never_succeeded_is_more_likely() -> None:
    assert _count({"rare"})["rare"] > _count(set())["rare"] * MISSING_WEIGHT / 2


def test_deadlines_of_a_sandbox_whose_start_got_no_response_are_known() -> None:
    """Otherwise its deletion by its own deadline looks like a lost desired state."""
    fleet = Fleet(cast("Site", None), [])
    of_spec: dict[str, Any] = dict.fromkeys(IDLE_DEADLINES, 3600) | {"max_age_seconds": None}
    listed = {"spec": of_spec, "idle": of_spec | IDLE_DEADLINES, "age": of_spec | {"max_age_seconds": MAX_AGE_SECONDS}}
    sandboxes = object.__new__(Sandboxes)
    sandboxes._fleet = fleet
    sandboxes.adopt({sandbox_id: (cast("Any", None), item) for sandbox_id, item in listed.items()})
    assert set(fleet.alive) == {"spec", "idle", "age"}
    assert set(fleet.expires) == {"age"}
    assert fleet.deadlines == {
        "idle": {Desired.PAUSED, Desired.STOPPED, Desired.DELETED},
        "age": {Desired.DELETED},
    }


def test_repair_pauses_sandboxes_that_a_quota_prevents_from_resuming() -> None:
    """Without a new request, a sandbox that was started from outside would keep running, and count as a violation."""
    paused: list[str] = []
    client = SimpleNamespace(pause=paused.append, resume=lambda _sandbox_id: None)
    workload: Any = object.__new__(Workload)
    workload.settings = workload.conversations = Mock()
    workload.sandboxes = Mock(send=lambda act, sandbox_id: act(sandbox_id))
    workload.fleet = Mock(alive=dict.fromkeys("abcd"), client=lambda _user: client)
    workload.repair()
    assert paused == list("abcd")
