"""A limit on the large bodies that a sandbox sends at a time: they stay in memory until they are stored."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from api.errors.limits import TooManyRequests
from api.json_text import SMALL_BYTES

# An agent server repeats a report after 5 s, three times, and later again.
RETRY_SECONDS = 5
# The rest of the body is not read.
CLOSE = {"Connection": "close"}
# Digits of a length; a longer one is larger than any limit.
MAX_DIGITS = 18


class BodyLimit:
    """A limit on the bytes of the bodies that each sandbox sends at a time to this process. Not for several threads."""

    def __init__(self, max_bytes: int) -> None:
        """Let each sandbox send `max_bytes` at a time, the limit of one body."""
        self._max_bytes = max_bytes
        self._held = Counter[str]()

    @contextmanager
    def hold(self, sandbox_id: str, headers: Mapping[str, str]) -> Iterator[None]:
        """Count the body of the request with these headers for the duration of the block. Small ones always pass.

        Raises:
            TooManyRequests: it exceeds the limit, together with those that are counted already.
        """
        size = self._size(headers)
        if size > SMALL_BYTES and self._held.get(sandbox_id, 0) + size > self._max_bytes:
            text = f"more than {self._max_bytes} bytes of this sandbox at a time; retry after Retry-After"
            raise TooManyRequests(text, RETRY_SECONDS, CLOSE)
        self._held[sandbox_id] += size
        try:
            yield
        finally:
            self._held[sandbox_id] -= size
            if not self._held[sandbox_id]:
                del self._held[sandbox_id]

    def _size(self, headers: Mapping[str, str]) -> int:
        """The body's size; the limit, if the headers do not state it. A body over the limit is rejected elsewhere."""
        length = headers.get("Content-Length", "0")
        if "Transfer-Encoding" in headers or not length.isdecimal() or len(length) > MAX_DIGITS:
            return self._max_bytes
        return min(int(length), self._max_bytes)
