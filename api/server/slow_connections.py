"""The connections of a process that wait for their clients, and the choice of one to close for a new one."""

from collections.abc import Hashable
from itertools import islice
from operator import attrgetter, itemgetter
from typing import Generic, Protocol, TypeVar

from api.server.limits import ConnectionLimits

# Connections compared for one choice: a choice must cost the same however many there are.
MAX_COMPARED = 50
# A client that sends a body, or reads a response, faster than this is not slow; bytes per second.
FAST = 16_384


class Waiting(Hashable, Protocol):
    """A connection that waits for its client."""

    @property
    def body_rate(self) -> float:
        """The bytes per second of the body that the client sends."""

    @property
    def read_rate(self) -> float:
        """The bytes per second that the client reads."""

    @property
    def unread_bytes(self) -> int:
        """The bytes in memory that the client has not read."""


Connection = TypeVar("Connection", bound=Waiting)


class SlowConnections(Generic[Connection]):
    """Connections that are idle, send a request's head, send its body, or don't read a response; the oldest first."""

    def __init__(self, max_unread: int = ConnectionLimits.unread_bytes) -> None:
        """Let all connections together keep `max_unread` bytes that were not read."""
        self._max_unread = max_unread
        # Dictionaries as ordered sets.
        self._idle: dict[Connection, None] = {}
        self._sending: dict[Connection, None] = {}
        # With the number of bytes that were unread when a connection was added last, and the sum of these.
        self._unread: dict[Connection, int] = {}
        self._unread_bytes = 0

    def add_idle(self, connection: Connection) -> None:
        """Add a connection that has not sent the complete head of its next request."""
        self._idle.pop(connection, None)
        self._idle[connection] = None

    def add_sending(self, connection: Connection) -> None:
        """Add a connection that has sent a part of a body."""
        self._sending[connection] = None

    def add_unread(self, connection: Connection) -> None:
        """Add a connection whose client has not read what was sent. One that was added before keeps its place."""
        size = connection.unread_bytes
        self._unread_bytes += size - self._unread.get(connection, 0)
        self._unread[connection] = size

    def remove(self, connection: Connection) -> None:
        """Remove a connection whose request the service is processing. Its client may still have to read."""
        self._idle.pop(connection, None)
        self._sending.pop(connection, None)

    def remove_unread(self, connection: Connection) -> None:
        """Remove a connection whose client reads what is sent."""
        self._unread_bytes -= self._unread.pop(connection, 0)

    def take_excess(self, but: Connection) -> list[Connection]:
        """If all together keep too many unread bytes, remove and return the slowest readers, and of equals the oldest.

        An eighth of the bytes is free afterwards: sorting takes a millisecond, and must not be repeated soon.

        Args:
            but: the connection that was added last: it may be the first one that reads.
        """
        if self._unread_bytes <= self._max_unread:
            return []
        for connection in list(self._unread):
            self.add_unread(connection)
        taken = []
        for connection in sorted(self._unread, key=attrgetter("read_rate")):
            if self._unread_bytes <= self._max_unread * 7 // 8:
                break
            if connection is not but:
                self.remove_unread(connection)
                taken.append(connection)
        return taken

    def take_slowest(self) -> Connection | None:
        """Remove and return the connection to close: the one that is idle longest, else one that sends or reads slowly.

        A client loses nothing with an idle connection.
        """
        found = next(iter(self._idle), None) or self._find_slowest()
        if found is not None:
            self.remove(found)
            self.remove_unread(found)
        return found

    def _find_slowest(self) -> Connection | None:
        rates = [(sending.body_rate, sending) for sending in islice(self._sending, MAX_COMPARED)]
        rates += [(unread.read_rate, unread) for unread in islice(self._unread, MAX_COMPARED)]
        slow = [(rate, connection) for rate, connection in rates if rate < FAST]
        return min(slow, key=itemgetter(0), default=(0, None))[1]
