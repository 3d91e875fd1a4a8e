"""Connections as uvicorn serves them, with the limits that it does not have itself.

A stranger has so long for the head of a request, and so much. A websocket whose caller is not known yet begins with a
short message: the one that brings the key.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CTRL_OPCODES, Frame

# From the connection, or from the first byte, to the end of a request's headers.
HEAD_SECONDS = 20.0
# Request line and headers, bytes; what is read at once may be more.
MAX_HEAD_BYTES = 65_536
# Of a websocket's first message, if that is to bring the key: a key is much shorter.
MAX_AUTH_BYTES = 4096
# In a websocket's scope, under `extensions`: whom to call if the key has come already.
LONG_MESSAGES = "agent_workspace.long_messages"


class LimitedHttp(HttpToolsProtocol):
    """An HTTP connection that is closed when the head of a request takes too long, or too much."""

    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a first request."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect no more."""
        self._stop_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take what has come, unless that is too much of a head."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._deadline is not None and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The headers are too large.")

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        if self._deadline is None:
            self._expect_head()

    def on_headers_complete(self) -> None:
        """Its head is complete."""
        self._stop_deadline()
        super().on_headers_complete()

    def _expect_head(self) -> None:
        self._head_bytes = 0
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _stop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """A websocket with a size limit for its first message, lifted if the key came with the request."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn.max_message_size = MAX_AUTH_BYTES
        # Not later: what follows may have come in the same packet, and is looked at next.
        self._recv_frame = self.conn.recv_frame
        self.conn.recv_frame = self._receive_first  # type: ignore[method-assign]

    def handle_connect(self, event: Any) -> None:
        """Begin, and let the application say that the first message may be long."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            extensions: Any = self.scope["extensions"]
            extensions[LONG_MESSAGES] = {"allow": self._allow_long_messages}

    def _receive_first(self, frame: Frame) -> None:
        self._recv_frame(frame)
        if frame.fin and frame.opcode not in CTRL_OPCODES:
            self._allow_long_messages()

    def _allow_long_messages(self) -> None:
        self.conn.recv_frame = self._recv_frame  # type: ignore[method-assign]
        self.conn.max_message_size = self.config.ws_max_size


def find_allowance(scope: Any) -> Callable[[], None]:
    """What to call if the key has come with a websocket's request; nothing happens where no server limits messages."""
    allow: Callable[[], None] = scope.get("extensions", {}).get(LONG_MESSAGES, {}).get("allow", lambda: None)
    return allow
