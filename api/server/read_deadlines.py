"""The deadline of a client that does not read what the server sends it."""

import asyncio
import math
from collections.abc import Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from api.server.limits import ConnectionLimits

# A client that has waited less may only have paused for a moment.
MOMENT_SECONDS = 1.0


class ReadDeadline(asyncio.Protocol):
    """A connection that is aborted if its client reads too little of data that is larger than the buffers.

    A mixin: the protocol that it is mixed into follows it in the bases.
    """

    limits = ConnectionLimits()
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _read_check: asyncio.TimerHandle | None = None
    # The bytes that were unread when the deadline was started, and the time.
    _unread = 0
    _unread_since = 0.0

    @property
    def unread_bytes(self) -> int:
        """The bytes in memory that the client has not read."""
        return self.transport.get_write_buffer_size()

    @property
    def read_rate(self) -> float:
        """The bytes per second that the client has read since the deadline was started.

        Infinite for a moment, and if nothing is unread.
        """
        seconds, unread = self.loop.time() - self._unread_since, self.unread_bytes
        if seconds < MOMENT_SECONDS or not unread:
            return math.inf
        return (self._unread - unread) / seconds

    def pause_writing(self) -> None:
        """Start the deadline. One that runs began with fewer unread bytes."""
        super().pause_writing()
        self.cancel_read_deadline()
        self.start_read_deadline()

    def resume_writing(self) -> None:
        """Cancel the deadline, because the client reads. The last bytes before the connection's end get a new one."""
        super().resume_writing()
        self.cancel_read_deadline()
        if self.transport.is_closing():
            self.start_read_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self.cancel_read_deadline()
        super().connection_lost(exc)

    def start_read_deadline(self) -> None:
        """Abort the connection if the client reads too little from now on."""
        if self._read_check is None:
            self._unread, self._unread_since = self.unread_bytes, self.loop.time()
            self._read_check = self.loop.call_later(self.limits.read_period, self._check_reader)

    def cancel_read_deadline(self) -> None:
        if self._read_check is not None:
            self._read_check.cancel()
            self._read_check = None

    def _check_reader(self) -> None:
        self._read_check = None
        due = self.limits.read_bytes_per_second * self.limits.read_period
        unread = self.unread_bytes
        if unread > max(0, self._unread - due):
            self.transport.abort()
        elif unread:
            self.start_read_deadline()
        else:
            self.cancel_read_deadline()


def waiting_bytes(pipeline: Iterable[tuple[RequestResponseCycle, Any]]) -> int:
    """The size of the requests that wait behind another one: their headers, and what was received of their bodies."""
    headers = (header for cycle, _ in pipeline for header in cycle.scope["headers"])
    return sum(len(name) + len(value) for name, value in headers) + sum(len(cycle.body) for cycle, _ in pipeline)


async def run_after_reading(cycle: RequestResponseCycle, app: Any, *arguments: Any) -> None:
    """Run a request once its client has read the previous response: the connection would keep both in memory."""
    await cycle.flow.drain()
    if cycle.transport.is_closing():
        cycle.disconnected = True  # uvicorn notes this for the newest request only, and would report a missing response
    else:
        await app(*arguments)
