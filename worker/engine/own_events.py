"""What this process does to containers: the engine's word of it is no news, and costs a look all the same."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

# After a call has returned, for how long its event may still be on its way. A call that changed nothing has none:
# somebody else's doing may be taken for ours for so long, and is found by the next comparison with the engine.
ECHO_SECONDS = 1.0


@dataclass(eq=False)
class _Call:
    """A call whose event may come until then."""

    name: str
    action: str
    until: float = float("inf")


class OwnEventFilter:
    """Calls that are under way or over a moment ago, oldest first, and not told of yet."""

    def __init__(self) -> None:
        """Begin with none."""
        self._calls: list[_Call] = []
        self._lock = threading.Lock()

    @contextmanager
    def expecting(self, name: str, action: str) -> Iterator[None]:
        """A call that the engine will tell of; not if it fails: then what is told was an earlier one."""
        call = _Call(name, action)
        with self._lock:
            self._calls.append(call)
        try:
            yield
        except BaseException:
            call.until = 0.0
            raise
        call.until = time.monotonic() + ECHO_SECONDS

    def are_told(self, name: str, action: str) -> bool:
        """Whether an event tells of one of them; each is told once."""
        with self._lock:
            moment = time.monotonic()
            self._calls = [call for call in self._calls if call.until >= moment]
            told = next((call for call in self._calls if (call.name, call.action) == (name, action)), None)
            if told is not None:
                self._calls.remove(told)
            return told is not None
