"""A websocket's connection to a sandbox: it follows no redirect, and reports how many bytes it keeps in memory."""

import asyncio
from collections.abc import Callable
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import CloseCode, Frame, Opcode

from shared.agent_server.errors import AgentServerUnreachable
from shared.agent_server.limits import KEEPALIVE, WRITE_SECONDS

# The memory of a received frame, besides its content.
FRAME_BYTES = 200
# Max frames that wait for the proxy; with more, the connection is not read. The frames of one read come on top.
MAX_QUEUE = 1
# Max pings whose answers the sandbox has not read: the library answers any number of them.
MAX_PINGS = 1000


class CountedConnection(ClientConnection):
    """A connection that reports its bytes each time they change."""

    _pings = 0
    _report: Callable[[int], None] | None = None

    def connection_made(self, transport: Any) -> None:
        """Have TCP find out that the node is lost: a paused sandbox does not respond to pings."""
        for option in KEEPALIVE:
            transport.get_extra_info("socket").setsockopt(*option)
        super().connection_made(transport)

    def watch(self, report: Callable[[int], None]) -> None:
        """Call a function with the number of bytes each time it changes."""
        self._report = report
        self._count_bytes()

    def data_received(self, data: bytes) -> None:
        """Count what was received, and disconnect a sandbox that pings and does not read the answers."""
        if not self.transport.get_write_buffer_size():
            self._pings = 0
        super().data_received(data)
        self._count_bytes()
        if self._pings > MAX_PINGS:
            self.transport.abort()

    def process_event(self, event: Any) -> None:
        """Count pings."""
        super().process_event(event)
        self._pings += isinstance(event, Frame) and event.opcode is Opcode.PING

    async def recv(self, decode: bool | None = None) -> Any:
        """Return the next message. It counts until no further message is queued behind it."""
        message = await super().recv(decode)
        if not self.recv_messages.frames:
            self._count_bytes()
        return message

    async def send_in_time(self, message: str | bytes) -> None:
        """Send a message.

        Raises:
            AgentServerUnreachable: the sandbox has not read enough for that within `WRITE_SECONDS`.
        """
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self.send(message)
        except TimeoutError:
            raise AgentServerUnreachable("the sandbox does not read what it is sent") from None

    async def close(self, code: int = CloseCode.NORMAL_CLOSURE, reason: str = "") -> None:
        """Close the connection in time. The library waits without limit until the other side reads."""
        try:
            async with asyncio.timeout(self.close_timeout):
                await super().close(code, reason)
        except TimeoutError:
            self.transport.abort()
            await self.wait_closed()

    def _count_bytes(self) -> None:
        if self._report is None:
            return
        frames = self.recv_messages.frames.queue
        received = sum(len(frame.data) + FRAME_BYTES for frame in frames) + len(self.protocol.reader.buffer)
        self._report(received + (self.protocol.current_size or 0) + self.transport.get_write_buffer_size())


class SandboxConnect(connect):
    """A connection without redirects: they could lead this service to addresses that sandboxes can't reach."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        """Return the exception for the library to raise, and never another address."""
        return exc
