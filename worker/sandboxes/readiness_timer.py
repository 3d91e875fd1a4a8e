"""The wait for an agent server's first answer: short polls first, longer ones later, up to a timeout."""

import time

# Seconds between two probes.
FIRST_SECONDS = 0.02
LAST_SECONDS = 0.25
FACTOR = 1.5


class ReadinessTimer:
    """One wait of a run; it begins with the first pause."""

    def __init__(self, timeout: float, silent_seconds: float) -> None:
        """Wait for `timeout` seconds in all, of which `silent_seconds` have passed before this run."""
        self._timeout = timeout
        self._before = silent_seconds
        self._since: float | None = None
        self._pause = FIRST_SECONDS

    @property
    def waited(self) -> float:
        """Seconds without an answer, including those before this run."""
        return self._before + (0.0 if self._since is None else time.monotonic() - self._since)

    @property
    def is_over(self) -> bool:
        """Whether the timeout is over."""
        return self.waited >= self._timeout

    def begin(self) -> None:
        """Start the wait, unless it was started already."""
        if self._since is None:
            self._since, self._pause = time.monotonic(), FIRST_SECONDS

    def pause(self) -> None:
        """Sleep until the next probe."""
        time.sleep(self._pause)
        self._pause = min(self._pause * FACTOR, LAST_SECONDS)

    def reset(self) -> None:
        """Reset the wait for a newer generation."""
        self._before, self._since = 0.0, None
