"""Response bodies cached by the version of the data they show."""

from collections.abc import Hashable
from contextlib import suppress
from threading import Lock

from cachetools import LRUCache

# Memory of an entry beside its body: the objects and the key.
ENTRY_OVERHEAD_BYTES = 1024

_Entry = tuple[str, bytes]


class ResponseCache:
    """A least-recently-used cache of response bodies, each with its version, limited in bytes."""

    def __init__(self, max_bytes: int) -> None:
        """Start empty."""
        self._entries: LRUCache[Hashable, _Entry] = LRUCache(max_bytes, _size)
        self._lock = Lock()

    def find(self, key: Hashable, version: str) -> bytes | None:
        """Return the cached body if it shows this version, else None."""
        with self._lock:
            entry = self._entries.get(key)
        return None if entry is None or entry[0] != version else entry[1]

    def store(self, key: Hashable, version: str, body: bytes) -> None:
        """Cache a body in place of an older one. The version was read before the body was rendered.

        A body larger than the cache is not cached.
        """
        with self._lock, suppress(ValueError):
            self._entries[key] = (version, body)


def _size(entry: _Entry) -> int:
    return len(entry[1]) + ENTRY_OVERHEAD_BYTES
