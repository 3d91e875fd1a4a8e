"""Websockets that report how many bytes they keep in memory, and that are closed if their client does not read."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from api.server.read_deadlines import ReadDeadline
from api.server.websockets import LimitedWebSocket

# In a websocket's scope, under `extensions`.
BUFFERS = "agent_workspace.buffers"

Report = Callable[[int], None]


async def _no_wait() -> None:
    return


@dataclass(frozen=True)
class Buffers:
    """What a websocket reports about its buffers. Without a counting server it reports nothing.

    Args:
        watch: registers a function, which is called with the number of bytes that were received and that the
            application has not got yet, each time this number changes.
        drained: waits until the client has read what was sent.
    """

    watch: Callable[[Report], None] = lambda _report: None
    drained: Callable[[], Awaitable[Any]] = _no_wait


def find_buffers(scope: Any) -> Buffers:
    found: Buffers = scope.get("extensions", {}).get(BUFFERS, Buffers())
    return found


class _CountedQueue(asyncio.Queue[Any]):
    """A queue of messages that counts their bytes."""

    size = 0

    def _put(self, item: Any) -> None:
        self.size += _size_of(item)
        super()._put(item)

    def _get(self) -> Any:
        item = super()._get()
        self.size -= _size_of(item)
        return item


def _size_of(message: Any) -> int:
    return sys.getsizeof(message) + sys.getsizeof(message.get("text") or message.get("bytes"))


class CountedWebSocket(ReadDeadline, LimitedWebSocket):
    """A websocket that counts what it keeps in memory, and has a deadline for a client that does not read."""

    queue: _CountedQueue
    _report: Report | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.queue = _CountedQueue()

    def handle_connect(self, event: Any) -> None:
        """Start the application, and add the buffers to its scope."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            extensions: Any = self.scope["extensions"]
            extensions[BUFFERS] = Buffers(self._watch, self.writable.wait)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._count_bytes()

    async def receive(self) -> Any:
        """Return the next message, and stop counting it."""
        message = await super().receive()
        self._count_bytes()
        return message

    def _watch(self, report: Report) -> None:
        self._report = report
        self._count_bytes()

    def _count_bytes(self) -> None:
        if self._report is None:
            return
        unparsed = len(self.conn.reader.buffer) + len(self._delayed)
        self._report(self.queue.size + unparsed + (self.conn.current_size or 0))
