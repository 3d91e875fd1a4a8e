"""Waiting for something to become so, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")


def eventually(
    condition: Callable[[], Result], *, deadline_seconds: float = 30, interval_seconds: float = 0.02
) -> Result:
    """Ask until the answer is true, and give that answer.

    Raises:
        AssertionError: it did not become true in time; the last answer is named.
    """
    deadline = time.monotonic() + deadline_seconds
    while not (answer := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not so within {deadline_seconds} s; the last answer was {answer!r}")
        time.sleep(interval_seconds)
    return answer
