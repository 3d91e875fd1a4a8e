"""What this process does to containers: the engine's word of it is no news, and costs a look all the same."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# After a call has returned, for how long its event may still be on its way. A call that changed nothing has none:
# somebody else's doing may be taken for ours for so long, and is found by the next comparison with the engine.
ECHO_SECONDS = 1.0


class OwnDoings:
    """Calls that are under way or over a moment ago, each by its container's name and the event that tells of it."""

    def __init__(self) -> None:
        """Begin with none."""
        self._expected: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def expecting(self, name: str, action: str) -> Iterator[None]:
        """A call that the engine will tell of; not if it fails."""
        key = (name, action)
        with self._lock:
            self._expected[key] = float("inf")
        try:
            yield
        except BaseException:
            with self._lock:
                self._expected.pop(key, None)
            raise
        with self._lock:
            if key in self._expected:
                self._expected[key] = time.monotonic() + ECHO_SECONDS

    def are_told(self, name: str, action: str) -> bool:
        """Whether an event tells of one of them; each is told once."""
        with self._lock:
            return self._expected.pop((name, action), 0.0) >= time.monotonic()
