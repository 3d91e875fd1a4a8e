"""The throttle of actions that frames trigger."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from api.sandbox_proxy.throttle import SECONDS, Throttle
from shared.errors import NotFound


class ClockLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still while code runs, and jumps to the next timer when all tasks wait."""

    def __init__(self) -> None:
        self._now = 0.0
        super().__init__(JumpingSelector(self))

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Set the clock forward."""
        self._now += seconds


class JumpingSelector(selectors.DefaultSelector):
    """A selector that sets the clock of its loop forward instead of waiting for a timer."""

    def __init__(self, loop: ClockLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            return super().select()
        self._loop.jump(timeout)
        return super().select(0)


def act_times(calls: Callable[[Throttle], Awaitable[None]], *, fails: bool = False) -> list[float]:
    """The times at which the action ran."""
    times: list[float] = []

    async def act() -> None:
        times.append(asyncio.get_running_loop().time())
        if fails and len(times) > 1:
            raise NotFound("sandbox", "x")

    async def run() -> None:
        throttled = Throttle(act)
        await calls(throttled)
        await throttled.aclose()

    with asyncio.Runner(loop_factory=ClockLoop) as runner:
        runner.run(run())
    return times


async def call_often(throttled: Throttle) -> None:
    for _ in range(100):
        await throttled.call()


async def call_often_and_wait(throttled: Throttle) -> None:
    await call_often(throttled)
    assert throttled._late is not None
    await throttled._late


async def call_rarely(throttled: Throttle) -> None:
    for _ in range(100):
        await throttled.call()
        await asyncio.sleep(2 * SECONDS)


def test_frames_within_a_second_cause_one_call() -> None:
    assert act_times(call_often) == [0]


@pytest.mark.parametrize("fails", [False, True])
def test_late_frames_cause_one_more_call(fails: bool) -> None:
    assert act_times(call_often_and_wait, fails=fails) == [0, SECONDS]


def test_rare_frames_cause_one_call_each() -> None:
    assert len(act_times(call_rarely)) == 100
