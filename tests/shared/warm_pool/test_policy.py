"""What a warm pool needs, over every small pool."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import product

import pytest
import time_machine

from shared.clock import now
from shared.warm_pool.policy import FIRST_REST, MAX_REST, WarmSandbox, plan_pool, rests_until

KINDS = {
    "ready": {"is_ready": True},
    "booting": {},
    "old": {"is_ready": True, "is_old": True},
    "useless": {"is_useless": True},
}
POOLS = [kinds for size in range(5) for kinds in product(KINDS, repeat=size)]
BOUNDS = [(target, most) for target in range(4) for most in range(target, 5)]


def pool(kinds: Sequence[str]) -> list[WarmSandbox]:
    return [WarmSandbox(f"{number} {kind}", **KINDS[kind]) for number, kind in enumerate(kinds)]


@pytest.mark.parametrize(("target", "most"), BOUNDS)
def test_pool_gets_not_too_large_and_keeps_nothing_useless(target: int, most: int) -> None:
    for kinds in POOLS:
        members = pool(kinds)
        tending = plan_pool(members, target=target, most=most)
        left = [member for member in members if member.id not in tending.retired]
        assert not any(member.is_useless for member in left)
        assert len(set(tending.retired)) == len(tending.retired)
        assert tending.wanted == 0 or len(left) + tending.wanted <= most, kinds


@pytest.mark.parametrize(("target", "most"), BOUNDS)
def test_nobody_who_could_be_claimed_goes_before_there_are_enough(target: int, most: int) -> None:
    for kinds in POOLS:
        members = pool(kinds)
        tending = plan_pool(members, target=target, most=most)
        ready = [member for member in members if member.is_ready]
        left = [member for member in ready if member.id not in tending.retired]
        full = len([member for member in members if not member.is_useless]) >= most  # no room for another beside it
        assert len(left) >= min(target, len(ready)) - full, kinds


@pytest.mark.parametrize(("target", "most"), BOUNDS)
def test_every_pool_comes_to_its_target_with_young_ones(target: int, most: int) -> None:
    for kinds in POOLS:
        members = pool(kinds)
        for _ in range(20):
            tending = plan_pool(members, target=target, most=most)
            kept = [member for member in members if member.id not in tending.retired]
            if kept == members and not tending.wanted:
                booting = [member for member in members if not member.is_ready]
                if not booting:
                    break
                kept = [WarmSandbox(member.id, is_ready=True, is_old=member.is_old) for member in members]
            members = [*kept, *pool(["booting"] * tending.wanted)]
        assert [member.is_ready for member in members] == [True] * target, kinds
        assert not any(member.is_old for member in members), kinds


def test_rests_longer_after_each_failure() -> None:
    with time_machine.travel(now(), tick=False):
        untils = [rests_until(failures, now()) for failures in range(1, 40)]
        rests = [until - now() for until in untils if until is not None]
    assert len(rests) == len(untils)
    assert rests == sorted(rests)
    assert (rests[0], rests[1], rests[-1]) == (FIRST_REST, 2 * FIRST_REST, MAX_REST)


def test_rests_no_longer_than_it_should() -> None:
    assert rests_until(0, None) is None
    assert rests_until(1, now() - FIRST_REST) is None
    assert rests_until(9, now() + timedelta(hours=1)) is None  # by a clock that was wrong
