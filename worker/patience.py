"""Requests that are given up when nobody wants their answer any more (decision 40).

A frozen server answers nothing and closes nothing: whoever waits for it would do so for as long as the longest of its
commands may take. So the one who waits looks about, now and then.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from typing import Any

import httpcore
import httpx

# Between two looks.
LOOK_SECONDS = 1.0
Look = Callable[[], None]

_look: ContextVar[Look | None] = ContextVar("look", default=None)


@contextmanager
def looking(look: Look) -> Iterator[None]:
    """Have `look` called every second that this thread waits for an answer; what it raises ends the wait."""
    token = _look.set(look)
    try:
        yield
    finally:
        _look.reset(token)


def look_about() -> None:
    """Call what is to be called now and then, if anything is."""
    if (look := _look.get()) is not None:
        look()


class PatientTransport(httpx.HTTPTransport):
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
            network_backend=_PatientBackend(),
        )


class _PatientBackend(httpcore.SyncBackend):
    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        return _PatientStream(super().connect_tcp(host, port, timeout, local_address, socket_options))


class _PatientStream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream) -> None:
        self._inner = inner

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        deadline = time.monotonic() + (float("inf") if timeout is None else timeout)
        while True:
            left = max(deadline - time.monotonic(), 0.001)
            try:
                return self._inner.read(max_bytes, min(left, LOOK_SECONDS))
            except httpcore.ReadTimeout:
                if left <= LOOK_SECONDS:
                    raise
            look_about()

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, timeout)

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        return _PatientStream(self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)
