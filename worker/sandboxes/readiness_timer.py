"""Waiting for an agent server to answer: tight at first, then easier on the machine, and not for ever."""

import time

# Between two probes, in seconds.
FIRST_SECONDS = 0.02
LAST_SECONDS = 0.25
FACTOR = 1.5


class ReadinessTimer:
    """One wait of a turn; it begins with the first pause."""

    def __init__(self, timeout: float, silent_seconds: float) -> None:
        """Wait for so many seconds in all; so many of them have passed before this turn."""
        self._timeout = timeout
        self._before = silent_seconds
        self._since: float | None = None
        self._pause = FIRST_SECONDS

    @property
    def waited(self) -> float:
        """Seconds without an answer, those before this turn among them."""
        return self._before + (0.0 if self._since is None else time.monotonic() - self._since)

    @property
    def is_over(self) -> bool:
        """Whether that was long enough."""
        return self.waited >= self._timeout

    def begin(self) -> None:
        """Count from now on, unless it is counted already."""
        if self._since is None:
            self._since, self._pause = time.monotonic(), FIRST_SECONDS

    def pause(self) -> None:
        """Let some time pass before the next probe."""
        time.sleep(self._pause)
        self._pause = min(self._pause * FACTOR, LAST_SECONDS)

    def renew(self) -> None:
        """Begin anew, for a newer wish."""
        self._before, self._since = 0.0, None
