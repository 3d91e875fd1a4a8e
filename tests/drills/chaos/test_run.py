"""A run goes on until it has done enough to the site, and says so if it could not."""

from collections import Counter
from typing import Any

import pytest

from tests.drills.chaos.run import MAX_TIMES, Result, _is_enough, _weaknesses


class Hand:
    def __init__(self, *missing: str) -> None:
        self.missing = list(missing)


class Looked:
    looks = 1


def result(faults: int, seconds: float, acknowledged: int = 500) -> Result:
    return Result(
        "sqlite",
        1,
        short_timeouts=True,
        seconds=seconds,
        acknowledged=acknowledged,
        faults=Counter({"disk full": faults}),
    )


@pytest.mark.parametrize(
    ("so_far", "missing", "planned", "enough"),
    [
        (result(20, 60), (), 60, True),
        (result(19, 60), (), 60, False),
        (result(19, 60 * MAX_TIMES + 1), (), 60, True),
        (result(20, 59), (), 60, False),
        (result(20, 60, acknowledged=499), (), 60, False),
        # In a minute not every kind has its turn.
        (result(20, 60), ("disk full",), 60, True),
        (result(100, 300), ("disk full",), 300, False),
        (result(100, 300), (), 300, True),
    ],
)
def test_run_ends_once_enough_was_done(so_far: Result, missing: tuple[str, ...], planned: float, enough: bool) -> None:
    hand: Any = Hand(*missing)
    assert _is_enough(so_far, hand, planned, 500) is enough


def test_run_with_too_few_faults_or_kinds_is_a_violation() -> None:
    hand, watch = Hand("disk full", "engine killed"), Looked()
    found = _weaknesses(result(99, 1000), watch, hand, 300)  # type: ignore[arg-type]
    assert found == [
        "only 99 of 100 faults",
        "no fault of this kind: disk full",
        "no fault of this kind: engine killed",
    ]


def test_run_without_a_look_is_a_violation() -> None:
    watch = Looked()
    watch.looks = 0
    found = _weaknesses(result(20, 60), watch, Hand(), 60)  # type: ignore[arg-type]
    assert found == ["no check for sandboxes that ran twice succeeded"]
