"""An HTTP client that costs little CPU time: it builds requests beforehand, and parses only a response's length.

It shares the processors with the server that it measures. `Load.client_cpu_seconds` is its own CPU time.
"""

import selectors
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

HEAD_END = b"\r\n\r\n"
LENGTH = b"content-length:"
MAX_RESPONSE_BYTES = 1 << 20
# One buffer for all responses, because allocating one for each costs more than reading the response.
_BUFFER = bytearray(MAX_RESPONSE_BYTES)
_VIEW = memoryview(_BUFFER)


@dataclass(frozen=True)
class Load:
    """The result of a run of several clients."""

    requests: int
    seconds: float
    client_cpu_seconds: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds


def make_request(path: str, headers: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a GET."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"GET {path} HTTP/1.1\r\nHost: bench\r\n{lines}\r\n".encode()


def time_requests(url: str, requests: Sequence[bytes], *, pause_seconds: float = 0) -> list[float]:
    """Send requests on one connection, with a pause before each; return the seconds of each."""
    with _connected(url) as connection:
        return [_time(connection, request, pause_seconds) for request in requests]


def time_while(url: str, request: bytes, is_busy: Callable[[], bool]) -> list[float]:
    """Repeat a request on one connection while `is_busy`; return the seconds of each."""
    took: list[float] = []
    with _connected(url) as connection:
        while is_busy() or not took:
            took.append(_time(connection, request, 0))
    return took


def post(url: str, path: str, headers: Mapping[str, str], body: bytes) -> int:
    """Send a body on a new connection; return the status of the response."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\nConnection: close\r\n{lines}\r\n"
    with _connected(url) as connection:
        connection.sendall(head.encode())
        with suppress(ConnectionError):  # a server that refuses the request stops reading
            connection.sendall(body)
        return int(connection.recv(MAX_RESPONSE_BYTES).split(b" ", 2)[1])


def get(url: str, path: str, headers: Mapping[str, str]) -> int:
    """Send a GET on a new connection, and read the response to its end; return the status."""
    with _connected(url) as connection:
        connection.sendall(make_request(path, {**headers, "Connection": "close"}))
        status = int(connection.recv(MAX_RESPONSE_BYTES).split(b" ", 2)[1])
        while connection.recv(MAX_RESPONSE_BYTES):
            pass
    return status


def load(url: str, requests: Sequence[bytes], *, clients: int, seconds: float, own_addresses: bool = False) -> Load:
    """Run clients that each send the next request as soon as they get a response.

    Args:
        url: the server's URL.
        requests: the requests, which each client sends in turn.
        clients: the number of clients.
        seconds: the duration.
        own_addresses: use a separate source address for each client; the server must listen at 127.0.0.1.
    """
    began, cpu = time.perf_counter(), time.process_time()
    until, done = began + seconds, 0
    with selectors.DefaultSelector() as selector:
        for number in range(clients):
            source = f"127.0.1.{number + 1}" if own_addresses else ""
            _start(selector, _connect(url, source), requests, number * len(requests) // clients)
        while time.perf_counter() < until:
            done += sum(_go_on(key.fileobj, key.data) for key, _ in selector.select(1))
        took = time.perf_counter() - began
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return Load(done, took, time.process_time() - cpu)


class _ClientState:
    """The next request of a client, and the number of bytes missing from its current response."""

    def __init__(self, requests: Sequence[bytes], position: int) -> None:
        self.requests, self.position, self.missing = requests, position, 0

    def next(self) -> bytes:
        self.position = (self.position + 1) % len(self.requests)
        return self.requests[self.position]


def _start(
    selector: selectors.BaseSelector, connection: socket.socket, requests: Sequence[bytes], position: int
) -> None:
    state = _ClientState(requests, position)
    selector.register(connection, selectors.EVENT_READ, state)
    connection.sendall(state.next())


def _go_on(connection: object, state: _ClientState) -> bool:
    assert isinstance(connection, socket.socket)
    state.missing = _receive(connection, state.missing)
    if state.missing:
        return False
    connection.sendall(state.next())
    return True


def _time(connection: socket.socket, request: bytes, pause_seconds: float) -> float:
    time.sleep(pause_seconds)
    began = time.perf_counter()
    connection.sendall(request)
    missing = _receive(connection, 0)
    while missing:
        missing = _receive(connection, missing)
    return time.perf_counter() - began


def _receive(connection: socket.socket, missing: int) -> int:
    """Receive a part of a response; return the number of bytes still missing. With 0 missing, a new response begins."""
    size = connection.recv_into(_VIEW)
    if not size:
        raise ConnectionError("the server closed the connection")
    if missing:
        return missing - size
    head = _BUFFER[: _BUFFER.index(HEAD_END, 0, size) + len(HEAD_END)]
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(_BUFFER[: min(size, 500)].decode(errors="replace"))
    start = head.lower().index(LENGTH) + len(LENGTH)
    return int(head[start : head.index(b"\r", start)]) + len(head) - size


@contextmanager
def _connected(url: str) -> Iterator[socket.socket]:
    connection = _connect(url)
    try:
        yield connection
    finally:
        connection.close()


def _connect(url: str, source: str = "") -> socket.socket:
    context = urlsplit(url)
    connection = socket.create_connection((context.hostname, context.port), 60, (source, 0) if source else None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
