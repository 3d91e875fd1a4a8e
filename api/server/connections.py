"""Connections of uvicorn with the limits that uvicorn does not have.

The head of a request is limited in time and size. A websocket of an unauthenticated caller starts with a short message,
which contains the key.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import CTRL_OPCODES, Frame

# From the connection, or from the first byte, to the end of a request's headers.
HEAD_SECONDS = 20.0
# Request line and headers, bytes. One read may exceed it.
MAX_HEAD_BYTES = 65_536
# Of a websocket's first message if it must contain the key; a key is much shorter.
MAX_AUTH_BYTES = 4096
# In a websocket's scope, under `extensions`: the callback that lifts the limit if the request has the key.
LONG_MESSAGES = "agent_workspace.long_messages"


class LimitedHttp(HttpToolsProtocol):
    """An HTTP connection that is closed when the head of a request takes too long or is too large."""

    _deadline: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline of the first request's head."""
        super().connection_made(transport)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the deadline."""
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data; reject a head that is too large."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._deadline is not None and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The headers are too large.")

    def on_message_begin(self) -> None:
        """Start the deadline of a request's head."""
        super().on_message_begin()
        if self._deadline is None:
            self._start_deadline()

    def on_headers_complete(self) -> None:
        """Cancel the deadline: the head is complete."""
        self._cancel_deadline()
        super().on_headers_complete()

    def _should_upgrade(self) -> bool:
        """Treat a websocket over the limit of connections as a request: uvicorn answers it with a 503."""
        max_connections = self.limit_concurrency
        is_over = max_connections is not None and len(self.connections) >= max_connections
        return super()._should_upgrade() and not is_over

    def _start_deadline(self) -> None:
        self._head_bytes = 0
        self._deadline = self.loop.call_later(HEAD_SECONDS, self.timeout_keep_alive_handler)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """A websocket with a size limit for its first message, lifted if the request has the key."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn.max_message_size = MAX_AUTH_BYTES
        # The limit must be lifted per frame: the next frame may be in the same packet, and is parsed immediately.
        self._recv_frame = self.conn.recv_frame
        self.conn.recv_frame = self._receive_first  # type: ignore[method-assign]

    def handle_connect(self, event: Any) -> None:
        """Start, and add a callback to the scope with which the application lifts the limit."""
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
    """Return the callback for a websocket whose request has the key. Without a limiting server it does nothing."""
    allow: Callable[[], None] = scope.get("extensions", {}).get(LONG_MESSAGES, {}).get("allow", lambda: None)
    return allow
