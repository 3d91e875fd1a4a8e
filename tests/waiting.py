"""Polling of a condition, with a timeout."""

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
MAX_SECONDS = 1.0


def eventually(
    condition: Callable[[], Result], *, deadline_seconds: float = 120, interval_seconds: float = 0.02
) -> Result:
    """Poll a condition until it is true, and return its result. The interval grows, because polling costs CPU time.

    Args:
        deadline_seconds: the timeout, far longer than an idle machine needs, because no test may depend on idleness.
        interval_seconds: the first pause; later pauses are a tenth of the time so far, at most a second.

    Raises:
        AssertionError: the condition did not become true in time; the message has its last result.
    """
    began = time.monotonic()
    while not (response := condition()):
        seconds = time.monotonic() - began
        if seconds > deadline_seconds:
            raise AssertionError(f"not so within {deadline_seconds} s; the last answer was {response!r}")
        pause(began, interval_seconds)
    return response


def pause(began: float, interval_seconds: float) -> None:
    """Sleep before the next poll: a tenth of the time since `began`, at most a second, but at least the interval."""
    time.sleep(max(interval_seconds, min((time.monotonic() - began) / 10, MAX_SECONDS)))
