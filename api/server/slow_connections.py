"""The connections of a process that wait for their clients, and the choice of one to close for a new one."""

from collections.abc import Hashable
from itertools import islice
from operator import itemgetter
from typing import Generic, Protocol, TypeVar

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


Connection = TypeVar("Connection", bound=Waiting)


class SlowConnections(Generic[Connection]):
    """Connections that are idle, send a request's head, send its body, or don't read a response; the oldest first."""

    def __init__(self) -> None:
        # Dictionaries as ordered sets.
        self._idle: dict[Connection, None] = {}
        self._sending: dict[Connection, None] = {}
        self._unread: dict[Connection, None] = {}

    def add_idle(self, connection: Connection) -> None:
        """Add a connection that has not sent the complete head of its next request."""
        self._idle.pop(connection, None)
        self._idle[connection] = None

    def add_sending(self, connection: Connection) -> None:
        """Add a connection that has sent a part of a body."""
        self._sending[connection] = None

    def add_unread(self, connection: Connection) -> None:
        """Add a connection whose client has not read what was sent. One that was added before keeps its place."""
        self._unread[connection] = None

    def remove(self, connection: Connection) -> None:
        """Remove a connection whose request the service is processing. Its client may still have to read."""
        self._idle.pop(connection, None)
        self._sending.pop(connection, None)

    def remove_unread(self, connection: Connection) -> None:
        """Remove a connection whose client reads what is sent."""
        self._unread.pop(connection, None)

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
