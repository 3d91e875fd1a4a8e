"""Limits on the large bodies that sandboxes send at a time: they stay in memory until they are stored."""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from api.errors.limits import TooManyRequests
from api.json_text import SMALL_BYTES

# The limit of a user, as a multiple of that of a sandbox: no number of sandboxes may fill the memory. There is none for
# all users: a length is counted before a byte is sent, so one user would block the others.
SANDBOXES_OF_OWNER = 4
# An agent server repeats a report after 5 s, three times, and later again.
RETRY_SECONDS = 5
# The rest of the body is not read.
CLOSE = {"Connection": "close"}
# Digits of a length; a longer one is larger than any limit.
MAX_DIGITS = 18


class BodyLimit:
    """A limit on the bytes of the bodies that each sandbox, and each user's sandboxes together, send at a time.

    It is one process's, and not for several threads.
    """

    def __init__(self, max_bytes: int) -> None:
        """Let each sandbox send `max_bytes` at a time, the limit of one body."""
        self._max_bytes = max_bytes
        self._held = Counter[str]()

    @contextmanager
    def hold(self, sandbox_id: str, owner_id: str, headers: Mapping[str, str]) -> Iterator[None]:
        """Count the body of the request with these headers for the duration of the block. Small ones always pass.

        Raises:
            TooManyRequests: it exceeds a limit, together with those that are counted already.
        """
        size = self._size(headers)
        if size > SMALL_BYTES:
            self._check(sandbox_id, size, self._max_bytes, "this sandbox")
            self._check(owner_id, size, self._max_bytes * SANDBOXES_OF_OWNER, "this user's sandboxes")
        self._count(size, sandbox_id, owner_id)
        try:
            yield
        finally:
            self._count(-size, sandbox_id, owner_id)

    def _check(self, sender: str, size: int, limit: int, name: str) -> None:
        if self._held.get(sender, 0) + size > limit:
            text = f"more than {limit} bytes of {name} at a time; retry after Retry-After"
            raise TooManyRequests(text, RETRY_SECONDS, CLOSE)

    def _count(self, size: int, *senders: str) -> None:
        for sender in senders:
            self._held[sender] += size
            if not self._held[sender]:
                del self._held[sender]

    def _size(self, headers: Mapping[str, str]) -> int:
        """The body's size; the limit, if the headers do not state it. A body over the limit is rejected elsewhere."""
        length = headers.get("Content-Length", "0")
        if "Transfer-Encoding" in headers or not length.isdecimal() or len(length) > MAX_DIGITS:
            return self._max_bytes
        return min(int(length), self._max_bytes)
