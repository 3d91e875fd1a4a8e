"""The connections of a process that wait for their clients, and the choice of one to close for a new one."""

from collections.abc import Hashable
from itertools import islice
from typing import Generic, Protocol, TypeVar

# Connections compared for one choice: a choice must cost the same however many there are.
MAX_COMPARED = 50
# A body that arrives faster is not slow, bytes per second.
FAST = 16_384


class Sending(Hashable, Protocol):
    """A connection that may have sent a part of a body."""

    @property
    def body_rate(self) -> float:
        """Bytes per second."""


Connection = TypeVar("Connection", bound=Sending)


class SlowConnections(Generic[Connection]):
    """Idle connections, those that send the head of a request, and those that send its body; the oldest first."""

    def __init__(self) -> None:
        # Dictionaries as ordered sets.
        self._idle: dict[Connection, None] = {}
        self._sending: dict[Connection, None] = {}

    def add_idle(self, connection: Connection) -> None:
        """Add a connection that has not sent the complete head of its next request."""
        self._idle.pop(connection, None)
        self._idle[connection] = None

    def add_sending(self, connection: Connection) -> None:
        """Add a connection that has sent a part of a body."""
        self._sending[connection] = None

    def remove(self, connection: Connection) -> None:
        """Remove a connection that is closed, or whose request the service is processing."""
        self._idle.pop(connection, None)
        self._sending.pop(connection, None)

    def take_slowest(self) -> Connection | None:
        """Remove and return the connection to close: the one that is idle longest, else one with a slow body."""
        found = next(iter(self._idle), None) or self._find_slow_body()
        if found is not None:
            self.remove(found)
        return found

    def _find_slow_body(self) -> Connection | None:
        slow = [sending for sending in islice(self._sending, MAX_COMPARED) if sending.body_rate < FAST]
        return min(slow, key=lambda sending: sending.body_rate, default=None)
