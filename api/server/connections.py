"""HTTP connections of uvicorn with the limits that uvicorn does not have.

The head of a request is limited in time and size, its body has a minimum rate, and a client must read its response. Few
requests may be pipelined. When a process has its maximum number of connections, those of slow clients are closed to
make room for new ones.
"""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, service_unavailable
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from api.server.limits import MAX_HEAD_BYTES, MAX_HEADERS, MAX_PIPELINED, ConnectionLimits
from api.server.read_deadlines import ReadDeadline, run_after_reading, waiting_bytes
from api.server.slow_connections import SlowConnections
from api.server.timeouts import BODY_TIMEOUT, CROWDED, HEAD_TIMEOUT, timeout_response
from api.server.unchunked_responses import without_chunks


def limited_http(limits: ConnectionLimits) -> type["LimitedHttp"]:
    """Return the protocol of one server, whose connections share these limits."""
    return type("LimitedHttp", (LimitedHttp,), {"limits": limits, "slow": SlowConnections(limits.unread_bytes)})


class LimitedHttp(ReadDeadline, HttpToolsProtocol):
    """An HTTP connection that is closed when its client is too slow, or the head of a request is too large.

    If the request has begun and its response has not, the client gets a 408 before that (RFC 9110, 15.5.9).
    """

    # Shared by the connections of one server.
    slow: SlowConnections["LimitedHttp"] = SlowConnections()
    _deadline: asyncio.TimerHandle | None = None
    _body_check: asyncio.TimerHandle | None = None
    # Bytes of the head; within a body, bytes of chunk extensions and trailers since the body's last byte.
    _head_bytes = 0
    _body_bytes = 0
    _checked_bytes = 0
    _body_began = 0.0
    _in_head = False
    _in_body = False
    # All further data is discarded: the connection ends with the responses to earlier requests.
    _is_ending = False
    # The request that the application serves, or the last one; others may wait behind it.
    _running: RequestResponseCycle | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # uvicorn would count the tasks of closed connections, too, until they end.
        self._max_connections, self.limit_concurrency = self.limit_concurrency, None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room if the process is full, and start the deadline of the first request's head."""
        super().connection_made(transport)
        self._make_room()
        self.slow.add_idle(self)
        self._start_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the running request, too: uvicorn tells the newest one only, which may wait behind it."""
        self._forget()
        super().connection_lost(exc)
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()

    def data_received(self, data: bytes) -> None:
        """Parse the data; reject a head or trailers that are too large; watch a body whose end has not come yet."""
        if self._is_ending:
            return
        self._head_bytes += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_head and self._deadline is None:
            self._start_deadline()
        if self._head_bytes > MAX_HEAD_BYTES and (self._deadline is not None or self._in_body):
            self.send_400_response("The headers are too large.")
        elif self._in_body and self._body_check is None:
            self.slow.add_sending(self)
            self._body_check = self.loop.call_later(self.limits.body_period, self._check_body)

    def handle_websocket_upgrade(self) -> None:
        """Hand the connection over to the websocket protocol."""
        self._forget()
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Reject what was received. Earlier requests get their responses first, and no 400 in place of them."""
        self._cancel_deadline()
        if not (self._in_body or self._has_response()):
            self._is_ending, self._in_head = True, False
            self.cycle.keep_alive = False
            return
        if self._in_body and not self._can_respond():
            self.transport.close()
        else:
            super().send_400_response(msg)
        self.start_read_deadline()

    def on_message_begin(self) -> None:
        """Begin a request's head. It gets a deadline unless its end was received together with its beginning.

        Raises:
            ValueError: too many requests wait.
        """
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Ignore a trailer: the application may have read the headers already.

        Raises:
            ValueError: there are too many headers.
        """
        if self._in_body:
            return
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")
        # As uvicorn does, without another call for each header. The parser leaves the whitespace behind a value.
        name, value = name.lower(), value.rstrip(b" \t")
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Cancel the deadline: the head is complete, and a body may follow.

        Raises:
            ValueError: the head is too large, or there is a body that the parser would take for the next request.
        """
        size = len(self.url)
        for name, value in self.headers:
            size += len(name) + len(value)
        if size > MAX_HEAD_BYTES:
            raise ValueError("the headers are too large")
        if self.parser.should_upgrade() and _has_body(self.headers):
            raise ValueError("an upgrade has no body")
        self._cancel_deadline()
        self.slow.remove(self)
        self.app = service_unavailable if self._is_over() else self.config.loaded_app
        super().on_headers_complete()
        if 0 < len(self.pipeline) < MAX_PIPELINED and waiting_bytes(self.pipeline) < HIGH_WATER_LIMIT:
            self.flow.resume_reading()  # uvicorn has paused it, and would not notice that the client disconnects
        self._in_head, self._in_body = False, True
        self._head_bytes = self._body_bytes = self._checked_bytes = 0
        self._body_began = self.loop.time()

    def on_body(self, body: bytes) -> None:
        self._head_bytes = 0
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the watch over the body."""
        self._in_body = False
        if self._body_check is not None:
            self._end_body_check()
            self._note_idle()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Release the request. From now on, the connection may be closed to make room for another."""
        super().on_response_complete()
        if self.cycle.response_complete:
            self._release_request()
        if self.transport.is_closing():
            self.start_read_deadline()
        self._note_idle()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection. A client that still has to read has the deadline of readers first."""
        if not self.transport.get_write_buffer_size():
            super().timeout_keep_alive_handler()
            return
        self.start_read_deadline()
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def start_read_deadline(self) -> None:
        """Start the deadline. Until the client has read, the connection may be closed to make room for another.

        If all connections keep too much that was not read, those of the slowest readers are closed.
        """
        super().start_read_deadline()
        self.slow.add_unread(self)
        for slow in self.slow.take_excess(but=self):
            slow.give_up(CROWDED)

    def cancel_read_deadline(self) -> None:
        """Cancel the deadline: the client reads, or the connection is closed."""
        super().cancel_read_deadline()
        self.slow.remove_unread(self)

    def resume_writing(self) -> None:
        """Note that the client reads what it gets: the connection may be idle now."""
        super().resume_writing()
        self._note_idle()

    @property
    def body_rate(self) -> float:
        """The bytes of the body per second until now."""
        return self._body_bytes / max(1.0, self.loop.time() - self._body_began)

    def give_up(self, detail: str) -> None:
        """Close the connection, with a 408 if a response can still be sent."""
        self._forget()
        self.connections.discard(self)
        if self._can_respond() and not self.transport.is_closing():
            self.transport.write(timeout_response(detail))
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running, app = cycle, without_chunks(cycle, app)
        super()._start_asgi_task(cycle, partial(run_after_reading, cycle, app) if self.flow.write_paused else app)

    def _can_respond(self) -> bool:
        if self._in_body:
            return not (self.cycle.response_started or self.pipeline)
        return self._has_response() and self._in_head

    def _has_response(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _release_request(self) -> None:
        # An idle connection must not keep its last request in memory. The next request may have begun already.
        self.cycle.scope, self.cycle.body = None, bytearray()  # type: ignore[assignment]
        if not self._in_head:
            self.scope, self.headers, self.url = None, [], b""  # type: ignore[assignment]

    def _should_upgrade(self) -> bool:
        """Treat a websocket as a request if it is over the limit of connections: uvicorn answers it with a 503.

        A websocket behind a response that is not sent or not read is treated so, too: both would use the connection.
        """
        is_free = self._has_response() and not self.flow.write_paused
        return super()._should_upgrade() and is_free and not self._is_over()

    def _is_over(self) -> bool:
        return self._max_connections is not None and len(self.connections) >= self._max_connections

    def _make_room(self) -> None:
        while self._is_over() and (slowest := self.slow.take_slowest()):
            slowest.give_up(CROWDED)

    def _note_idle(self) -> None:
        has_response = self.cycle is not None and self.cycle.response_complete
        is_busy = self._in_body or self.pipeline or self.flow.write_paused
        if has_response and not (is_busy or self.transport.is_closing()):
            self.slow.add_idle(self)

    def _check_body(self) -> None:
        received = self._body_bytes - self._checked_bytes
        is_slow = received < self.limits.body_bytes_per_second * self.limits.body_period
        # While reading is paused, or the request waits, not the client is slow. After a response nothing more is read.
        is_waiting = self.flow.read_paused or self.cycle is not self._running
        if self.cycle.response_complete or (is_slow and not is_waiting):
            self.give_up(BODY_TIMEOUT)
            return
        self._checked_bytes = self._body_bytes
        self._body_check = self.loop.call_later(self.limits.body_period, self._check_body)

    def _end_body_check(self) -> None:
        if self._body_check is not None:
            self._body_check.cancel()
            self._body_check = None
            self.slow.remove(self)

    def _start_deadline(self) -> None:
        self._head_bytes = 0
        self._deadline = self.loop.call_later(self.limits.head_seconds, self.give_up, HEAD_TIMEOUT)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _forget(self) -> None:
        self._cancel_deadline()
        self._end_body_check()
        self.cancel_read_deadline()
        self.slow.remove(self)


def _has_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    lengths = (value.strip() for name, value in headers if name in (b"content-length", b"transfer-encoding"))
    return any(length != b"0" for length in lengths)
