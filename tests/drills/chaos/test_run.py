"""A run continues until it has injected enough faults, and reports what is missing if it could not."""

from collections import Counter
from typing import Any

import pytest

from tests.drills.chaos.run import MAX_TIMES, Result, _is_enough, _weaknesses


class FakeNemesis:
    def __init__(self, *missing: str) -> None:
        self.missing = list(missing)


class FakeWatch:
    def __init__(self, checks: int) -> None:
        self.checks = checks


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
        # A run of one minute need not inject every kind.
        (result(20, 60), ("disk full",), 60, True),
        (result(100, 300), ("disk full",), 300, False),
        (result(100, 300), (), 300, True),
    ],
)
def test_run_ends_once_enough_work_was_done(
    so_far: Result, missing: tuple[str, ...], planned: float, enough: bool
) -> None:
    nemesis: Any = FakeNemesis(*missing)
    assert _is_enough(so_far, nemesis, planned, 500) is enough


def test_run_with_too_few_faults_or_kinds_is_a_violation() -> None:
    nemesis, watch = FakeNemesis("disk full", "engine killed"), FakeWatch(1000)
    found = _weaknesses(result(99, 1000), watch, nemesis, 300)  # type: ignore[arg-type]
    assert found == [
        "only 99 of 100 faults",
        "no fault of this kind: disk full",
        "no fault of this kind: engine killed",
    ]


def test_run_with_too_few_checks_is_a_violation() -> None:
    found = _weaknesses(result(20, 60), FakeWatch(14), FakeNemesis(), 60)  # type: ignore[arg-type]
    assert found == ["only 14 of 15 checks for sandboxes that ran twice"]
    assert _weaknesses(result(20, 60), FakeWatch(15), FakeNemesis(), 60) == []  # type: ignore[arg-type]
