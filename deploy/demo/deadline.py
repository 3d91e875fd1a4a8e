"""The timeout of the whole demo."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from deploy.demo.errors import DemoError


@dataclass
class DemoDeadline:
    """A timeout of `seconds` for all waits of one demo. `pause` is the poll interval."""

    seconds: float
    pause: float = 0.2
    started: float = field(default_factory=time.monotonic)

    def polls(self, waiting_for: str) -> Iterator[float]:
        """Yield the seconds since this wait began at each poll, and raise DemoError after the timeout."""
        began = time.monotonic()
        while time.monotonic() - self.started < self.seconds:
            yield time.monotonic() - began
            time.sleep(self.pause)
        raise DemoError(f"timed out after {self.seconds:.0f} s, waiting for {waiting_for}")
