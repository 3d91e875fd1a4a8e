"""Filter for engine events that this process causes: they need no status check."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# Max delay of a call's event after the call has returned. A call without effect has no event: an outside change in
# this time can be mistaken for this worker's, and the next resync finds it.
ECHO_SECONDS = 1.0


@dataclass(eq=False)
class _Call:
    """A call whose event may arrive before `until`."""

    name: str
    action: str
    until: float = float("inf")


class OwnEventFilter:
    """Pending and recent calls whose events have not arrived yet, oldest first."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._lock = threading.Lock()

    @contextmanager
    def expect(self, name: str, action: str) -> Iterator[None]:
        """Expect an event of the call in the block. After a failed call an event belongs to an earlier call."""
        call = _Call(name, action)
        with self._lock:
            self._calls.append(call)
        try:
            yield
        except BaseException:
            call.until = 0.0
            raise
        call.until = time.monotonic() + ECHO_SECONDS

    def is_own(self, name: str, action: str) -> bool:
        """Whether an event belongs to a call of this process. Each call matches one event."""
        with self._lock:
            now = time.monotonic()
            self._calls = [call for call in self._calls if call.until >= now]
            found = next((call for call in self._calls if (call.name, call.action) == (name, action)), None)
            if found is not None:
                self._calls.remove(found)
            return found is not None
