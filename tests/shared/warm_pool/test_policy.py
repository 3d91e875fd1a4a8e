"""The plan of a warm pool, over every small pool."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import product

import pytest
import time_machine

from shared.clock import now
from shared.warm_pool.policy import FIRST_BACKOFF, MAX_BACKOFF, WarmSandbox, backoff_until, plan_pool

KINDS = {
    "ready": {"is_ready": True},
    "booting": {},
    "old": {"is_ready": True, "is_old": True},
    "unusable": {"is_unusable": True},
}
POOLS = [kinds for size in range(5) for kinds in product(KINDS, repeat=size)]
BOUNDS = [(target, max_size) for target in range(4) for max_size in range(target, 5)]


def pool(kinds: Sequence[str]) -> list[WarmSandbox]:
    return [WarmSandbox(f"{number} {kind}", **KINDS[kind]) for number, kind in enumerate(kinds)]


@pytest.mark.parametrize(("target", "max_size"), BOUNDS)
def test_pool_stays_within_its_max_size_without_unusable_sandboxes(target: int, max_size: int) -> None:
    for kinds in POOLS:
        sandboxes = pool(kinds)
        plan = plan_pool(sandboxes, target=target, max_size=max_size)
        remaining = [sandbox for sandbox in sandboxes if sandbox.id not in plan.retired]
        assert not any(sandbox.is_unusable for sandbox in remaining)
        assert len(set(plan.retired)) == len(plan.retired)
        assert plan.wanted == 0 or len(remaining) + plan.wanted <= max_size, kinds


@pytest.mark.parametrize(("target", "max_size"), BOUNDS)
def test_ready_sandboxes_stay_until_enough_are_ready(target: int, max_size: int) -> None:
    for kinds in POOLS:
        sandboxes = pool(kinds)
        plan = plan_pool(sandboxes, target=target, max_size=max_size)
        ready = [sandbox for sandbox in sandboxes if sandbox.is_ready]
        remaining = [sandbox for sandbox in ready if sandbox.id not in plan.retired]
        full = len([sandbox for sandbox in sandboxes if not sandbox.is_unusable]) >= max_size  # no room for another one
        assert len(remaining) >= min(target, len(ready)) - full, kinds


@pytest.mark.parametrize(("target", "max_size"), BOUNDS)
def test_every_pool_reaches_its_target_with_young_sandboxes(target: int, max_size: int) -> None:
    for kinds in POOLS:
        sandboxes = pool(kinds)
        for _ in range(20):
            plan = plan_pool(sandboxes, target=target, max_size=max_size)
            remaining = [sandbox for sandbox in sandboxes if sandbox.id not in plan.retired]
            if remaining == sandboxes and not plan.wanted:
                booting = [sandbox for sandbox in sandboxes if not sandbox.is_ready]
                if not booting:
                    break
                remaining = [WarmSandbox(old.id, is_ready=True, is_old=old.is_old) for old in sandboxes]
            sandboxes = [*remaining, *pool(["booting"] * plan.wanted)]
        assert [sandbox.is_ready for sandbox in sandboxes] == [True] * target, kinds
        assert not any(sandbox.is_old for sandbox in sandboxes), kinds


def test_backoff_grows_with_each_failure() -> None:
    with time_machine.travel(now(), tick=False):
        untils = [backoff_until(failures, now()) for failures in range(1, 40)]
        backoffs = [until - now() for until in untils if until is not None]
    assert len(backoffs) == len(untils)
    assert backoffs == sorted(backoffs)
    assert (backoffs[0], backoffs[1], backoffs[-1]) == (FIRST_BACKOFF, 2 * FIRST_BACKOFF, MAX_BACKOFF)


def test_backoff_ends() -> None:
    assert backoff_until(0, None) is None
    assert backoff_until(1, now() - FIRST_BACKOFF) is None
    assert backoff_until(9, now() + timedelta(hours=1)) is None  # written by a wrong clock
