"""One limit on the whole demonstration."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from deploy.demo.errors import DemoError


@dataclass
class Deadline:
    """Ends every wait of one demonstration `seconds` after it was made; `pause` is between two looks."""

    seconds: float
    pause: float = 0.2
    started: float = field(default_factory=time.monotonic)

    def looks(self, waiting_for: str) -> Iterator[float]:
        """Yield the seconds since this wait began, again and again, until the limit raises DemoError."""
        began = time.monotonic()
        while time.monotonic() - self.started < self.seconds:
            yield time.monotonic() - began
            time.sleep(self.pause)
        raise DemoError(f"gave up after {self.seconds:.0f} s, waiting for {waiting_for}")
