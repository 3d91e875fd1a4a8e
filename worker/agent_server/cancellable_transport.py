"""Requests that end in time, and those that are given up when nobody wants their answer any more (decision 40).

A frozen server answers nothing and closes nothing: whoever waits for it would do so for as long as the longest of its
commands may take. So the one who waits looks about, now and then. A hostile server sends a byte now and then: what
limits one read of a socket limits nothing, so that both go by the clock, however much arrives.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Any

import httpcore
import httpx

# Between two looks.
LOOK_SECONDS = 1.0
Look = Callable[[], None]

# A request without a timeout of its own: the time that a socket waits has a max.
UNLIMITED_SECONDS = 86_400.0
# Agent servers are on the same private network.
CONNECT_SECONDS = 5.0
# Bytes that are sent between two checks of the timeout.
WRITE_BYTES = 64 * 1024


class _Looker:
    """What is to be called, and when."""

    def __init__(self, look: Look) -> None:
        self._look = look
        self._due_at = time.monotonic() + LOOK_SECONDS

    def check_if_due(self) -> None:
        if time.monotonic() >= self._due_at:
            self._look()
            self._due_at = time.monotonic() + LOOK_SECONDS


_looker: ContextVar[_Looker | None] = ContextVar("looker", default=None)
# When requests of this thread time out, by the monotonic clock.
_ends_at: ContextVar[float] = ContextVar("ends_at", default=float("inf"))


@contextmanager
def looking(look: Look) -> Iterator[None]:
    """Have `look` called every second that this thread waits for an answer; what it raises ends the wait."""
    token = _looker.set(_Looker(look))
    try:
        yield
    finally:
        _looker.reset(token)


@contextmanager
def timeout(seconds: float) -> Iterator[None]:
    """Have all requests that this thread makes in the block time out after so many seconds in all.

    In a block within another the earlier end counts.
    """
    token = _ends_at.set(min(_ends_at.get(), time.monotonic() + seconds))
    try:
        yield
    finally:
        _ends_at.reset(token)


def _look_if_due() -> None:
    if (looker := _looker.get()) is not None:
        looker.check_if_due()


def _left(ends_at: float, error: type[Exception]) -> float:
    """Seconds until then, or until the timeout of the block."""
    left = min(ends_at, _ends_at.get()) - time.monotonic()
    if left <= 0:
        raise error("the time is over")
    return left


def _ends(seconds: float | None) -> float:
    return time.monotonic() + (UNLIMITED_SECONDS if seconds is None else seconds)


class CancellableTransport(httpx.HTTPTransport):
    """httpx's transport, whose waits for an answer are interrupted by looks.

    Args:
        keepalive_seconds: how long an idle connection is kept.
    """

    def __init__(self, keepalive_seconds: float) -> None:
        # Agent servers speak no TLS: this context trusts nobody, and costs no reading of certificates.
        super().__init__(verify=SSLContext(PROTOCOL_TLS_CLIENT), trust_env=False)
        self._pool = httpcore.ConnectionPool(
            max_connections=None,
            max_keepalive_connections=None,
            keepalive_expiry=keepalive_seconds,
            network_backend=_CancellableBackend(),
        )


class _CancellableBackend(httpcore.SyncBackend):
    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left = _left(_ends(timeout), httpcore.ConnectTimeout)
        seconds = min(left, CONNECT_SECONDS)
        return _CancellableStream(super().connect_tcp(host, port, seconds, local_address, socket_options))


class _CancellableStream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        ends_at = _ends(timeout)
        while True:
            _look_if_due()
            left = _left(ends_at, httpcore.ReadTimeout)
            with suppress(httpcore.ReadTimeout):
                return self._inner.read(max_bytes, min(left, LOOK_SECONDS))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        ends_at = _ends(timeout)
        for start in range(0, len(buffer), WRITE_BYTES):
            _look_if_due()
            self._inner.write(buffer[start : start + WRITE_BYTES], _left(ends_at, httpcore.WriteTimeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _CancellableStream(self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
