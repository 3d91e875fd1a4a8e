"""Limits on requests to agent servers and on their responses.

The size of a response's header is counted where a transport reads from its socket. httpcore reads any number of interim
responses (status 1xx) before a response, and would block the event loop meanwhile. They count as a part of the header.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import httpcore

CONNECT_SECONDS = 5.0
# An agent server closes a connection that was idle for 5 s. A request must not be sent at that moment.
KEEPALIVE_SECONDS = 4.0

# With all interim responses before it.
MAX_HEADER_BYTES = 32 * 1024
# An error response with more content has no text.
MAX_ERROR_BYTES = 64 * 1024
# Bytes of a path in a sandbox, Linux's limit. A longer one may not fit into a URL.
MAX_PATH_BYTES = 4096
# A conversation's document has 7 KB, a command's output that a worker reads has 4 KB.
MAX_BYTES = 1024 * 1024
# A file, a diff, a list of changes, or a page of events.
MAX_DOWNLOAD_BYTES = 8 * 1024 * 1024
# A message may contain images. More than a message to the API may have.
MAX_MESSAGE_BYTES = 5 * 1024 * 1024
# Each chunk costs the reader some time. Those of an honest server have more bytes on average, except the first ones.
FREE_CHUNKS = 1024
MIN_CHUNK_BYTES = 512
# Values in a document: one of three bytes may take 200 in memory.
MAX_VALUES = 200_000

# Items of a page, and of any other list that is not limited below.
MAX_ITEMS = 100
MAX_SKILLS = 1000
MAX_HOOKS = 1000
# Conversations per page: few, because each may be large.
RUNNING_PER_PAGE = 10
MAX_RUNNING_PAGES = 10
# A page has one message.
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
