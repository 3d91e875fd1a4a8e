"""The max size of a response's header, counted where a transport reads from its socket.

httpcore reads any number of interim responses (status 1xx) before a response, and the event loop would do nothing else
meanwhile. They count as a part of the header.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import httpcore

from shared.agent_server.limits import MAX_HEADER_BYTES

# Bytes that this thread's or task's request may still read before its header is complete; None: it is complete.
_left: ContextVar[int | None] = ContextVar("header_left", default=None)


@contextmanager
def limited_header() -> Iterator[None]:
    """Limit what is read in the block, in which a transport sends a request and reads a header."""
    token = _left.set(MAX_HEADER_BYTES)
    try:
        yield
    finally:
        _left.reset(token)


def max_read(max_bytes: int) -> int:
    """Return how many of these bytes may be read now.

    Raises:
        httpcore.RemoteProtocolError: none, because the header is too large.
    """
    left = _left.get()
    if left == 0:
        raise httpcore.RemoteProtocolError(f"the header is larger than {MAX_HEADER_BYTES} bytes")
    return max_bytes if left is None else min(max_bytes, left)


def count_read(data: bytes) -> bytes:
    """Count and return bytes that were read."""
    if (left := _left.get()) is not None:
        _left.set(left - len(data))
    return data
