"""Limits on the bytes of concurrent large bodies per sandbox and user: bodies stay in memory until they are stored."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from api.errors.limits import TooManyRequests
from api.json_text import SMALL_BYTES

# An agent server repeats a report after 5 s, three times, and later again.
RETRY_SECONDS = 5
# Closes the connection, because the rest of the body is not read.
CLOSE = {"Connection": "close"}
# Digits of a length; a longer one is larger than any limit.
MAX_DIGITS = 18


class BodyLimit:
    """A limit on the bytes of the bodies that each sender sends to this process at a time. Not thread-safe.

    There is no limit for all senders together: a length is counted before a byte is sent, so one sender could block all
    others.
    """

    def __init__(self, max_bytes: int, *, of: str, bodies: int = 1) -> None:
        """Let each sender send `bodies` times `max_bytes` at a time; `max_bytes` is the limit of one body.

        `of` is the sender's name in errors.
        """
        self._max_bytes, self._of_sender, self._name = max_bytes, max_bytes * bodies, of
        self._held = Counter[str]()

    @contextmanager
    def hold(self, sender_id: str, headers: Mapping[str, str]) -> Iterator[None]:
        """Count the body of the request with these headers for the duration of the block. Small ones always pass.

        Raises:
            TooManyRequests: the body exceeds the limit, together with the sender's bodies that are counted already.
        """
        size = self._size(headers)
        if size > SMALL_BYTES and self._held.get(sender_id, 0) + size > self._of_sender:
            text = f"more than {self._of_sender} bytes of {self._name} at a time; retry after Retry-After"
            raise TooManyRequests(text, RETRY_SECONDS, CLOSE)
        self._held[sender_id] += size
        try:
            yield
        finally:
            self._held[sender_id] -= size
            if not self._held[sender_id]:
                del self._held[sender_id]

    def _size(self, headers: Mapping[str, str]) -> int:
        """The body's size; the limit, if the headers do not state it. A body over the limit is rejected elsewhere."""
        length = headers.get("Content-Length", "0")
        if "Transfer-Encoding" in headers or not length.isdecimal() or len(length) > MAX_DIGITS:
            return self._max_bytes
        return min(int(length), self._max_bytes)
