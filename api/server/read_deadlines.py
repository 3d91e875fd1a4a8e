"""The deadline of a client that does not read what the server sends it."""

import asyncio

from api.server.limits import ConnectionLimits


class ReadDeadline(asyncio.Protocol):
    """A connection that is aborted if its client reads too little of data that is larger than the buffers.

    A mixin: the protocol that it is mixed into follows it in the bases.
    """

    limits = ConnectionLimits()
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _read_check: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """Start the deadline."""
        super().pause_writing()
        self.start_read_deadline()

    def resume_writing(self) -> None:
        """Cancel the deadline, because the client reads. The last bytes before the connection's end get a new one."""
        super().resume_writing()
        self.cancel_read_deadline()
        if self.transport.is_closing():
            self.start_read_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self.cancel_read_deadline()
        super().connection_lost(exc)

    def start_read_deadline(self) -> None:
        """Abort the connection if the client reads too little from now on."""
        if self._read_check is None:
            unread = self.transport.get_write_buffer_size()
            self._read_check = self.loop.call_later(self.limits.read_period, self._check_reader, unread)

    def cancel_read_deadline(self) -> None:
        """Cancel the deadline, if one is running."""
        if self._read_check is not None:
            self._read_check.cancel()
            self._read_check = None

    def _check_reader(self, unread: int) -> None:
        self._read_check = None
        due = self.limits.read_bytes_per_second * self.limits.read_period
        if self.transport.get_write_buffer_size() > max(0, unread - due):
            self.transport.abort()
        else:
            self.start_read_deadline()
