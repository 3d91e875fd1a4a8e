"""The worker's requests to agent servers, with a total timeout and a cancellation check (decisions 40 and 45).

A paused server sends no response and closes no connection: without a check a caller would wait for the max time of a
command. A waiting thread therefore calls a cancellation check periodically. A hostile server may send single bytes to
restart the timeout of each socket read. Both the timeout and the check therefore depend on the clock only.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import httpcore
import httpx

from shared.agent_server.door import ERROR_HEADER, DoorAccess, DoorError, error_in, is_door_path
from shared.agent_server.errors import DoorUnavailable
from shared.agent_server.limits import KEEPALIVE_SECONDS, MAX_BYTES, count_read, limited_header, max_read
from shared.agent_server.responses import AgentServerResponse, ResponseReader
from shared.agent_server.untrusted_http import HTTP_ERRORS, client_options
from shared.observability import correlation
from worker.agent_server.door_names import NameBackend

# Pause between two cancellation checks.
LOOK_SECONDS = 1.0
Check = Callable[[], None]

# Timeout of a request that sets none. It is finite, because a socket's timeout has a maximum.
UNLIMITED_SECONDS = 86_400.0
# Max bytes sent between two checks.
WRITE_BYTES = 64 * 1024
# Timeout of an exchange that does not name one.
CONTROL_SECONDS = 20.0
# Timeout of a response's content after its header. It is short, because a server sends the header after its work.
CONTENT_SECONDS = 10.0
# Timeout of a door check, and the time for which the door's own last response counts as a successful check.
DOOR_SECONDS = 3.0
DOOR_SEEN_SECONDS = 1.0
CLIENT_ERROR = 400
KEY_HEADER = "X-Session-API-Key"


class _PeriodicCheck:
    def __init__(self, check: Check) -> None:
        self._check = check
        self._due_at = time.monotonic() + LOOK_SECONDS

    def run_if_due(self) -> None:
        if time.monotonic() >= self._due_at:
            self._check()
            self._due_at = time.monotonic() + LOOK_SECONDS


_periodic_check: ContextVar[_PeriodicCheck | None] = ContextVar("periodic_check", default=None)
# Time at which requests of this thread time out, by the monotonic clock.
_ends_at: ContextVar[float] = ContextVar("ends_at", default=float("inf"))


def open_client(door: DoorAccess) -> httpx.Client:
    """Create a client for any number of agent servers and threads, with reuse of connections to their nodes' doors."""
    transport = CancellableTransport(KEEPALIVE_SECONDS, door)
    return httpx.Client(timeout=CONTROL_SECONDS, transport=transport, **client_options())


def exchange(
    client: httpx.Client,
    method: str,
    url: str,
    *,
    seconds: float,
    max_bytes: int = MAX_BYTES,
    headers: Mapping[str, str],
    **content: Any,
) -> AgentServerResponse:
    """Send a request and read its response.

    Args:
        seconds: total timeout of request and response.
        max_bytes: max size of a successful response's content.
        content: httpx's arguments for the request's content.

    Raises:
        httpx.HTTPError: there is no complete response within `seconds`.
        WrongServer: the response is encoded, or larger than the reader's limits.
    """
    with (
        timeout(seconds),
        client.stream(method, url, headers=dict(headers), timeout=seconds, **content) as response,
        timeout(CONTENT_SECONDS),
    ):
        reader = ResponseReader(response, max_bytes)
        for chunk in response.iter_bytes():
            if not reader.feed(chunk):
                break
        return reader.received


def exchange_status(client: httpx.Client, url: str, *, seconds: float, headers: Mapping[str, str]) -> int:
    """Send a GET and read only the status of its response. The connection is closed if content follows.

    Raises:
        httpx.HTTPError: there is no status within `seconds`.
    """
    with timeout(seconds), client.stream("GET", url, headers=dict(headers), timeout=seconds) as response:
        return int(response.status_code)


def check_door(send: Callable[[httpx.Request], httpx.Response], url: httpx.URL) -> None:
    """Check that a door itself responds: it rejects the path `/`, which leads to no sandbox.

    Raises:
        DoorUnavailable: there is no response within `DOOR_SECONDS`, or another server responds.
    """
    token = _ends_at.set(time.monotonic() + DOOR_SECONDS)  # the timeout of the surrounding block may be over
    try:
        response = send(httpx.Request("GET", url))
        response.close()
    except HTTP_ERRORS as error:
        raise _unavailable(error) from error
    finally:
        _ends_at.reset(token)
    if ERROR_HEADER not in response.headers:
        raise DoorUnavailable("another server than the node's door responds at its address")


@contextmanager
def cancellable(check: Check) -> Iterator[None]:
    """Call `check` every second while this thread waits for a server in the block; its errors end the wait."""
    token = _periodic_check.set(_PeriodicCheck(check))
    try:
        yield
    finally:
        _periodic_check.reset(token)


@contextmanager
def timeout(seconds: float) -> Iterator[None]:
    """Set a total timeout of `seconds` for all requests of this thread in the block.

    In nested blocks, the earliest end applies.
    """
    token = _ends_at.set(min(_ends_at.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _ends_at.reset(token)


def _check_if_due() -> None:
    if (check := _periodic_check.get()) is not None:
        check.run_if_due()


def _remaining_seconds(ends_at: float, error: type[Exception]) -> float:
    """Seconds until `ends_at` or until the timeout of the block, whichever is earlier."""
    left = min(ends_at, _ends_at.get()) - time.monotonic()
    if left <= 0:
        raise error("timed out")
    return left


def _ends(seconds: float | None) -> float:
    return time.monotonic() + (UNLIMITED_SECONDS if seconds is None else seconds)


class CancellableTransport(httpx.HTTPTransport):
    """httpx's transport with cancellation checks while it waits for a response, or for the server to read a request.

    Args:
        keepalive_seconds: time after which an idle connection is closed.
        door: the access to the nodes' doors.
    """

    def __init__(self, keepalive_seconds: float, door: DoorAccess) -> None:
        tls = door.tls()
        super().__init__(verify=tls, trust_env=False)
        self._door = door
        # By host and port: when the door itself last responded, by the monotonic clock.
        self._seen_at: dict[bytes, float] = {}
        self._pool = httpcore.ConnectionPool(
            ssl_context=tls,
            max_connections=None,
            max_keepalive_connections=None,
            keepalive_expiry=keepalive_seconds,
            network_backend=_CancellableBackend(),
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; return its response as soon as the header is complete.

        Before an error counts against an agent server, its door is checked: if the door is down or hangs, or another
        server has its port, the agent server's state is unknown.

        Raises:
            DoorUnavailable: the door does not respond, or rejects the request, or another server responds in its place.
            httpx.TransportError: the agent server sends no response.
        """
        request.headers.update(self._door.headers)
        with limited_header(), correlation.span(f"agent server {request.method}", "client", path=request.url.path):
            request.headers.update(correlation.outgoing_headers())
            response = self._send(request)
        if not is_door_path(request.url.path):  # from a door itself, or from a server without one
            return response
        if error := error_in(response.headers):
            self._seen_at[request.url.netloc] = time.monotonic()
            response.read()
            response.close()
            raise DoorUnavailable(str(error)) if isinstance(error, DoorError) else error
        if response.status_code >= CLIENT_ERROR or KEY_HEADER not in request.headers:
            try:
                self._require_door(request.url)
            except BaseException:
                response.close()
                raise
        return response

    def _send(self, request: httpx.Request) -> httpx.Response:
        try:
            return super().handle_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if is_door_path(request.url.path):
                raise _unavailable(error) from error
            raise
        except httpx.TransportError:
            self._require_door(request.url)
            raise

    def _require_door(self, url: httpx.URL) -> None:
        """Check that the door itself responds, unless it has just responded."""
        seen_at = self._seen_at.get(url.netloc, float("-inf"))
        if not is_door_path(url.path) or time.monotonic() < seen_at + DOOR_SEEN_SECONDS:
            return
        check_door(self.handle_request, url.join("/"))
        self._seen_at[url.netloc] = time.monotonic()


def _unavailable(error: Exception) -> DoorUnavailable:
    return DoorUnavailable(f"the node's door does not respond: {type(error).__name__}")


class _CancellableBackend(NameBackend):
    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *rest: Any, **options: Any
    ) -> httpcore.NetworkStream:
        seconds = _remaining_seconds(_ends(timeout), httpcore.PoolTimeout)
        return _CancellableStream(super().connect_tcp(host, port, seconds, *rest, **options))


class _CancellableStream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        ends_at = _ends(timeout)
        while True:
            _check_if_due()
            left = _remaining_seconds(ends_at, httpcore.ReadTimeout)
            with suppress(httpcore.ReadTimeout):
                return count_read(self._inner.read(max_read(max_bytes), min(left, LOOK_SECONDS)))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        ends_at, sent, connection = _ends(timeout), 0, self._inner.get_extra_info("socket")
        while sent < len(buffer):
            _check_if_due()
            connection.settimeout(min(_remaining_seconds(ends_at, httpcore.WriteTimeout), LOOK_SECONDS))
            try:
                with suppress(TimeoutError):
                    sent += connection.send(buffer[sent : sent + WRITE_BYTES])
            except OSError as error:
                raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        self._inner.close()

    def start_tls(self, *context: Any, **options: Any) -> httpcore.NetworkStream:
        return _CancellableStream(self._inner.start_tls(*context, **options))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
