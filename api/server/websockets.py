"""Websockets of uvicorn with the limits that uvicorn does not have.

A websocket of an unauthenticated caller starts with a short message in few frames, which contains the key. Nothing
after it is read before the key has been checked. Each frame costs the event loop time and memory, however small it is,
and thousands fit into one read: a message has a limited number of tiny fragments, and tiny frames beyond a burst are
delayed.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ProtocolError
from websockets.frames import CTRL_OPCODES, Frame

from api.server.limits import MAX_AUTH_BYTES

# In a websocket's scope, under `extensions`.
KEY_LIMITS = "agent_workspace.key_limits"
# Max frames up to the end of the first message, pings included.
MAX_AUTH_FRAMES = 16
# A frame of fewer bytes is tiny.
TINY_BYTES = 512
MAX_TINY_FRAGMENTS = 1024
# Tiny frames of one websocket: a burst, and then more per second than any terminal needs.
BURST_FRAMES = 1024
FRAMES_PER_SECOND = 5000
# The pause between two checks whether the application and the client read again.
PAUSE_SECONDS = 0.05
# Bytes that are parsed at a time: at most 682 frames.
PIECE_BYTES = 4096
BAD_HANDSHAKE = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def _do_nothing() -> None:
    return


@dataclass(frozen=True)
class KeyLimits:
    """The limits of a websocket whose key has not been checked. Without a limiting server there are none.

    Args:
        hold: delays all messages until `lift` is called or the websocket is closed; called if the request has a key.
        lift: lifts the limits of the first message, and reads on; called when the key is known to be right.
    """

    hold: Callable[[], None] = _do_nothing
    lift: Callable[[], None] = _do_nothing


def find_key_limits(scope: Any) -> KeyLimits:
    found: KeyLimits = scope.get("extensions", {}).get(KEY_LIMITS, KeyLimits())
    return found


class LimitedWebSocket(WebSocketsSansIOProtocol):
    """A websocket with limits on tiny frames, and on what a client may send before its key has been checked.

    While the timer runs or messages are held, reading is paused, and `_delayed` has what is not parsed yet.
    `read_paused` is false then, because uvicorn would resume reading otherwise.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._delayed = b""
        self._timer: asyncio.TimerHandle | None = None
        # Whether messages wait for the check of the key.
        self._is_held = False
        self._frames = self._tiny_frames = self._tiny_fragments = 0
        # When the tiny frames so far would have come at an even rate, by the event loop's clock.
        self._even_at = 0.0
        self.conn.max_message_size = MAX_AUTH_BYTES
        self._receive_frame = self.conn.recv_frame
        self.conn.recv_frame = self._count_first  # type: ignore[method-assign]

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse the data, unless it is to be delayed. Reject a handshake that cannot be parsed."""
        if self._timer is not None or self._is_held:
            self._delayed += data
            return
        self._parse(data)
        if not self.handshake_initiated:
            self.transport.write(b"".join(self.conn.data_to_send()) or BAD_HANDSHAKE)
            self.transport.close()

    def keepalive_timeout(self) -> None:
        """Abort the connection if the client does not read either: it would stay open until the client reads.

        While reading is paused, the client's answer can't be read. The next ping finds out if the client has left.
        """
        if self.read_paused or self._timer is not None or self._is_held:
            self.send_keepalive_ping()
            return
        super().keepalive_timeout()
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def handle_connect(self, event: Any) -> None:
        """Start the application, and add to its scope the limits that it lifts."""
        super().handle_connect(event)
        if hasattr(self, "scope"):
            extensions: Any = self.scope["extensions"]
            extensions[KEY_LIMITS] = KeyLimits(self._hold, self._lift)

    async def receive(self) -> Any:
        """Return the next message. If reading was paused for it, the answer to a ping may come only now."""
        was_paused = self.read_paused
        message = await super().receive()
        if was_paused:
            self._extend_ping()
        return message

    async def send(self, message: Any) -> None:
        """Send a message. After a close, read on: the client's close ends the connection."""
        await super().send(message)
        if message["type"] == "websocket.close":
            self._release()

    def _parse(self, data: bytes) -> None:
        for start in range(0, len(data), PIECE_BYTES):
            super().data_received(data[start : start + PIECE_BYTES])
            seconds = self._find_delay()
            if self.transport.is_closing():
                return
            if seconds > 0 or self._is_held:
                self._delay(data[start + PIECE_BYTES :], seconds)
                return

    def _find_delay(self) -> float:
        if not self._tiny_frames:
            return 0.0
        now = self.loop.time()
        self._even_at = max(self._even_at, now) + self._tiny_frames / FRAMES_PER_SECOND
        self._tiny_frames = 0
        return self._even_at - now - BURST_FRAMES / FRAMES_PER_SECOND

    def _delay(self, data: bytes, seconds: float) -> None:
        self._delayed += data
        self.read_paused = False
        self.transport.pause_reading()
        if not self._is_held:
            self._timer = self.loop.call_later(seconds, self._parse_delayed)

    def _hold(self) -> None:
        self._is_held = True
        self._delay(b"", 0.0)

    def _release(self) -> None:
        if self._is_held:
            self._is_held = False
            self._parse_delayed()

    def _parse_delayed(self) -> None:
        data, self._delayed, self._timer = self._delayed, b"", None
        if self.transport.is_closing():
            return
        is_read = self.close_sent or self.queue.empty()
        if not (is_read and self.writable.is_set()):
            self._delay(data, PAUSE_SECONDS)
            return
        self._parse(data)
        if not (self._timer or self.read_paused or self.transport.is_closing()):
            self.transport.resume_reading()
            self._extend_ping()

    def _extend_ping(self) -> None:
        if self.pong_timer is not None:
            self.pong_timer.cancel()
            self.pong_timer = self.loop.call_later(self.ping_timeout or 0, self.keepalive_timeout)

    def _count_first(self, frame: Frame) -> None:
        self._frames += 1
        if self._frames > MAX_AUTH_FRAMES:
            raise ProtocolError("too many frames before the first message")
        self._receive_frame(frame)
        if frame.fin and frame.opcode not in CTRL_OPCODES and not self.close_sent:
            self._is_held = True
            # The next frame may be in the same packet, and would be parsed immediately.
            buffer = self.conn.reader.buffer
            self._delayed = bytes(buffer)
            buffer.clear()

    def _count(self, frame: Frame) -> None:
        self._receive_frame(frame)
        is_tiny = len(frame.data) < TINY_BYTES
        self._tiny_frames += is_tiny
        if not frame.fin:
            self._tiny_fragments += is_tiny
            if self._tiny_fragments > MAX_TINY_FRAGMENTS:
                raise ProtocolError("too many tiny fragments")
        elif frame.opcode not in CTRL_OPCODES:
            self._tiny_fragments = 0

    def _lift(self) -> None:
        self.conn.recv_frame = self._count  # type: ignore[method-assign]
        self.conn.max_message_size = self.config.ws_max_size
        self._release()
