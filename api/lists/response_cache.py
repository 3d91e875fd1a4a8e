"""Responses of lists, cached by the version of the data that they show."""

from collections.abc import Hashable
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

from cachetools import LRUCache

# Memory of a response beside its body: the objects and the key.
OVERHEAD_BYTES = 1024


class CachedResponse(NamedTuple):
    """A response: the version of the lists that was read before it was built, its JSON and its entity tag."""

    version: str
    body: bytes
    etag: str


class ResponseCache:
    """A least-recently-used cache of responses, limited in bytes."""

    def __init__(self, max_bytes: int) -> None:
        """Start empty."""
        self._responses: LRUCache[Hashable, CachedResponse] = LRUCache(max_bytes, _size)
        self._lock = Lock()

    def find(self, key: Hashable, version: str) -> CachedResponse | None:
        """Return the cached response if it shows this version, else None."""
        with self._lock:
            response = self._responses.get(key)
        return response if response and response.version == version else None

    def store(self, key: Hashable, response: CachedResponse) -> None:
        """Cache a response in place of an older one, unless it is larger than the cache."""
        with self._lock, suppress(ValueError):
            self._responses[key] = response


def _size(response: CachedResponse) -> int:
    return len(response.body) + OVERHEAD_BYTES
