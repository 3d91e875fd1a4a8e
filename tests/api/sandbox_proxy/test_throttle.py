"""What is done for frames, but not for each."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from api.sandbox_proxy import throttle
from api.sandbox_proxy.throttle import Pace
from shared.errors import NotFound


def acts(steps: Callable[[Pace], Awaitable[None]], *, fails: bool = False) -> int:
    """How often something was done."""
    done = 0

    async def act() -> None:
        nonlocal done
        done += 1
        if fails and done > 1:
            raise NotFound("sandbox", "x")

    async def run() -> None:
        paced = Pace(act)
        await steps(paced)
        await paced.aclose()

    asyncio.run(run())
    return done


async def enqueue(paced: Pace) -> None:
    for _ in range(100):
        await paced.step()


async def hurry_and_wait(paced: Pace) -> None:
    await enqueue(paced)
    assert paced._late is not None
    await paced._late


def test_many_frames_at_once_cost_one_act() -> None:
    assert acts(enqueue) == 1


@pytest.mark.parametrize("fails", [False, True])
def test_frames_that_came_too_soon_are_followed_by_one_more_act(monkeypatch: pytest.MonkeyPatch, fails: bool) -> None:
    monkeypatch.setattr(throttle, "SECONDS", 0.05)
    assert acts(hurry_and_wait, fails=fails) == 2


def test_each_frame_acts_where_they_are_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "SECONDS", 0.0)
    assert acts(enqueue) == 100
