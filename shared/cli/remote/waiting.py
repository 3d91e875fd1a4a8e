"""Waiting for the result of a command."""

import time
from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from shared.cli.remote.service import TimedOut

Found = TypeVar("Found")
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the command has completed.")]
Timeout = Annotated[float, typer.Option(min=0, help="Max seconds to wait; after that, exit with 5.")]
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 2.0


def wait_for(read: Callable[[], Found | None], seconds: float, goal: str, *, since: float | None = None) -> Found:
    """Call `read` until it returns something.

    Args:
        read: raises an error if there is nothing to wait for any more.
        seconds: max time.
        goal: what is awaited, for the error.
        since: when the `seconds` began, by the monotonic clock; None: now.

    Raises:
        TimedOut: it did not happen in time.
    """
    until, pause = (time.monotonic() if since is None else since) + seconds, FIRST_PAUSE
    while (found := read()) is None:
        if time.monotonic() >= until:
            raise TimedOut(f"{goal} did not happen within {seconds:g} s")
        time.sleep(min(pause, max(0.0, until - time.monotonic())))
        pause = min(LONGEST_PAUSE, pause * 1.5)
    return found
