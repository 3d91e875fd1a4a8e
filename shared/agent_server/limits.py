"""Limits on requests to agent servers and on their responses.

The size of a response's header is counted where a transport reads from its socket. httpcore reads any number of interim
responses (status 1xx) before a response, and would block the event loop until then. They count as a part of the header.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import httpcore

CONNECT_SECONDS = 5.0
# The proxy's timeout for a piece of a body, and for a message. While a sandbox does not read them, their sender is not
# read either, and the API does not notice that it leaves.
WRITE_SECONDS = 300.0
# An agent server closes a connection that was idle for 5 s. A request must not be sent at that moment.
KEEPALIVE_SECONDS = 4.0
# A machine that loses its power or its network ends no connection. TCP finds that out within this time, of which the
# first half is without traffic. The kernel of a paused sandbox's machine responds.
LOST_SECONDS, PROBES = 60, 3
KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, LOST_SECONDS // 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, LOST_SECONDS // 2 // PROBES),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, PROBES),
)

# The limit of a response's header, together with all interim responses before it.
MAX_HEADER_BYTES = 32 * 1024
# The content of a larger error response is cut, so its error text is not read.
MAX_ERROR_BYTES = 64 * 1024
# Bytes of a path in a sandbox, Linux's limit. A longer one may not fit into a URL.
MAX_PATH_BYTES = 4096
# The default limit. The output of a command that a worker runs has 80 KB, which may take 480 KB as JSON. A
# conversation's document has 7 KB at first, and grows by half a kilobyte with each call of its model.
MAX_BYTES = 1024 * 1024
# What is kept of a response that exceeds its limit.
MAX_BEGINNING_BYTES = 16 * 1024
# A file, a diff, a list of changes, or a page of events.
MAX_DOWNLOAD_BYTES = 8 * 1024 * 1024
# A message may contain images. The limit is higher than that of messages to the API.
MAX_MESSAGE_BYTES = 5 * 1024 * 1024
# Characters of a title that an agent server takes. It refuses a longer one, and a blank one.
MAX_TITLE_LENGTH = 200
# Each chunk costs the reader CPU time. Except for the first ones, an honest server's chunks are larger on average.
FREE_CHUNKS = 1024
MIN_CHUNK_BYTES = 512
# The maximum number of values in a document: a value of three bytes may take 200 bytes of memory.
MAX_VALUES = 200_000

# Items of a page, and of any other list that is not limited below.
MAX_ITEMS = 100
MAX_SKILLS = 1000
MAX_HOOKS = 1000
# Conversations per page: few, because each may be large.
RUNNING_PER_PAGE = 10
MAX_RUNNING_PAGES = 10
# The maximum number of pages of messages that a worker reads; each page has one message.
MAX_MESSAGES = 1000
# Pages of events that the API reads for a websocket.
MAX_EVENT_PAGES = 20

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
        httpcore.RemoteProtocolError: no more bytes may be read, because the header is too large.
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
