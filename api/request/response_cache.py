"""Response bodies cached by the version of the data they show."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

# Memory of an entry beside its body: the objects and the key.
ENTRY_OVERHEAD_BYTES = 1024


class ResponseCache:
    """A least-recently-used cache of response bodies, each with its version, limited in bytes."""

    def __init__(self, max_bytes: int) -> None:
        """Start empty."""
        self._max_bytes = max_bytes
        self._size = 0
        self._entries: OrderedDict[Hashable, tuple[str, bytes]] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable, version: str) -> bytes | None:
        """Return the cached body if it shows this version, else None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry[0] != version:
                return None
            self._entries.move_to_end(key)
            return entry[1]

    def store(self, key: Hashable, version: str, body: bytes) -> None:
        """Cache a body in place of an older one. The version was read before the body was rendered."""
        with self._lock:
            self._release(self._entries.pop(key, None))
            self._entries[key] = (version, body)
            self._size += len(body) + ENTRY_OVERHEAD_BYTES
            while self._size > self._max_bytes:
                self._release(self._entries.popitem(last=False)[1])

    def _release(self, entry: tuple[str, bytes] | None) -> None:
        if entry is not None:
            self._size -= len(entry[1]) + ENTRY_OVERHEAD_BYTES
