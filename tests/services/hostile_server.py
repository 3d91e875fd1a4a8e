"""A malicious agent server, which responds to every request according to its mode."""

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

HUGE_BYTES = 400 * 1024 * 1024
DRIP_SECONDS = 0.05
PART = b" " * 65_536
ID = "01234567-89ab-cdef-0123-456789abcdef"

# The parts of a response, sent until the event is set.
Mode = Callable[[threading.Event], Iterator[bytes]]


class HostileServer:
    """A server for any number of connections; `mode` may be changed at any time."""

    def __init__(self, listener: socket.socket, mode: Mode) -> None:
        host, self.port = listener.getsockname()
        self.url = f"http://{host}:{self.port}"
        self.mode = mode
        # The first part of each request.
        self.requested: list[bytes] = []
        self.ended = threading.Event()
        self._listener = listener

    def serve(self) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self.requested.append(connection.recv(65_536))
            for part in self.mode(self.ended):
                connection.sendall(part)
            # Closing a connection with unread data resets it, and the response would be lost.
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass


@contextmanager
def hostile(mode: Mode, host: str = "127.0.0.1") -> Iterator[HostileServer]:
    """Run a server in a mode, for the length of the block."""
    with socket.create_server((host, 0), backlog=100) as listener:
        server = HostileServer(listener, mode)
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            server.ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def answering(document: Any, status: int = 200, **headers: str) -> Mode:
    """Send a document as JSON, and close the connection."""
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    lines = [f"HTTP/1.1 {status} As told", f"Content-Length: {len(content)}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    head = "\r\n".join([*lines, "", ""]).encode()
    return lambda _ended: iter([head + content])


def never_answering(ended: threading.Event) -> Iterator[bytes]:
    """Accept the request, and send nothing."""
    ended.wait(120)
    yield b""


def dripping(ended: threading.Event) -> Iterator[bytes]:
    """Send a response without an end, one byte at a time."""
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    while not ended.wait(DRIP_SECONDS):
        yield b" "


def dripping_head(ended: threading.Event) -> Iterator[bytes]:
    """Send headers without an end, one byte at a time."""
    yield b"HTTP/1.1 200 OK\r\nX-Header: "
    while not ended.wait(DRIP_SECONDS):
        yield b"x"


def flooding(ended: threading.Event) -> Iterator[bytes]:
    """Send 400 MB."""
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    for _ in range(HUGE_BYTES // len(PART)):
        if not ended.is_set():
            yield PART


def inflating(_ended: threading.Event) -> Iterator[bytes]:
    """Send a body that decompresses to 400 MB, although the client did not accept an encoding."""
    yield b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n"
    yield from [gzip.compress(PART * 100)] * (HUGE_BYTES // len(PART) // 100)


def crumbling(ended: threading.Event) -> Iterator[bytes]:
    """Send 70 MB in chunks of one byte."""
    yield b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    for _ in range(HUGE_BYTES // len(PART)):
        if not ended.is_set():
            yield b"1\r\n \r\n" * (len(PART) // 6)


def promising(ended: threading.Event) -> Iterator[bytes]:
    """Send interim responses without end."""
    while not ended.is_set():
        yield b"HTTP/1.1 100 Continue\r\n\r\n" * 2000


MODES: dict[str, Mode] = {
    "never answers": never_answering,
    "drips": dripping,
    "drips its headers": dripping_head,
    "floods": flooding,
    "inflates": inflating,
    "crumbles": crumbling,
    "promises": promising,
    "large header": answering({}, X_Header="x" * 90_000),
    "empty object": answering({}),
    "list instead of an object": answering([]),
    "null": answering(None),
    "items are no list": answering({"items": {"id": ID}}),
    "items without id": answering({"items": [{}]}),
    "items are texts": answering({"items": ["a"]}),
    "id is no id": answering({"items": [{"id": "\0/../.."}], "next_page_id": None}),
    "many items": answering({"items": [{"id": ID}] * 10_000, "next_page_id": None}),
    "endless pages": answering({"items": [{"id": ID}], "next_page_id": "again"}),
    "nested": answering(b"[" * 1_000_000),
    "no JSON": answering(b"<html>"),
    "half a surrogate pair": answering(b'{"items": [{"id": "\\ud800"}]}'),
    "other key": answering({"detail": "Unauthorized"}, 401),
    "odd refusal": answering({"detail": [{"loc": 1, "msg": {}}, {"loc": ["\0"], "msg": "[type=" * 100_000}]}, 422),
    "error": answering({"detail": 1}, 500),
    "moved": answering({}, 307, Location="http://[::1"),
    "moved to no host": answering({}, 307, Location="foo:bar"),
}
