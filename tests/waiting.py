"""Polling of a condition, with a timeout."""

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")
MAX_SECONDS = 1.0


def eventually(
    condition: Callable[[], Result], *, deadline_seconds: float = 120, interval_seconds: float = 0.02
) -> Result:
    """Ask until the answer is true, and give that answer. The longer it takes, the less often: asking takes processor.

    Args:
        deadline_seconds: far longer than it takes on an idle machine, on which no test may depend.
        interval_seconds: before the second question; later ones wait a tenth of the time so far, at most a second.

    Raises:
        AssertionError: it did not become true in time; the last answer is named.
    """
    began = time.monotonic()
    while not (answer := condition()):
        seconds = time.monotonic() - began
        if seconds > deadline_seconds:
            raise AssertionError(f"not so within {deadline_seconds} s; the last answer was {answer!r}")
        pause(began, interval_seconds)
    return answer


def pause(began: float, interval_seconds: float) -> None:
    """Sleep before the next question: a tenth of the time since `began`, at least that long, at most a second."""
    time.sleep(max(interval_seconds, min((time.monotonic() - began) / 10, MAX_SECONDS)))
