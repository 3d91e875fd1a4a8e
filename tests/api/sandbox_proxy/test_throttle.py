"""The throttle of actions that frames trigger."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from api.sandbox_proxy import throttle
from api.sandbox_proxy.throttle import Throttle
from shared.errors import NotFound


def count_acts(calls: Callable[[Throttle], Awaitable[None]], *, fails: bool = False) -> int:
    """The number of times that the action ran."""
    done = 0

    async def act() -> None:
        nonlocal done
        done += 1
        if fails and done > 1:
            raise NotFound("sandbox", "x")

    async def run() -> None:
        throttled = Throttle(act)
        await calls(throttled)
        await throttled.aclose()

    asyncio.run(run())
    return done


async def call_often(throttled: Throttle) -> None:
    for _ in range(100):
        await throttled.call()


async def call_often_and_wait(throttled: Throttle) -> None:
    await call_often(throttled)
    assert throttled._late is not None
    await throttled._late


def test_frames_in_one_second_cause_one_act() -> None:
    assert count_acts(call_often) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_late_frames_cause_one_more_act(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    monkeypatch.setattr(throttle, "SECONDS", 0.05)
    assert count_acts(call_often_and_wait, fails=fails) == 2


def test_rare_frames_cause_an_act_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "SECONDS", 0.0)
    assert count_acts(call_often) == 100
