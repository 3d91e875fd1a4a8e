"""Answers that are remembered as long as they are true."""

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock

# Beside its bytes, what each one takes: itself, its key, its place.
APIECE = 1024


class ResponseCache:
    """The bodies that were asked for last, each with the version of what it was made from, up to so many bytes."""

    def __init__(self, most_bytes: int) -> None:
        """Remember nothing yet."""
        self._most = most_bytes
        self._size = 0
        self._kept: OrderedDict[Hashable, tuple[str, bytes]] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable, version: str) -> bytes | None:
        """The body that was kept under this key, if it was made from this version."""
        with self._lock:
            kept = self._kept.get(key)
            if kept is None or kept[0] != version:
                return None
            self._kept.move_to_end(key)
            return kept[1]

    def keep(self, key: Hashable, version: str, body: bytes) -> None:
        """Remember a body, whose making began after this version was read, in the place of an older one."""
        with self._lock:
            self._forget(self._kept.pop(key, None))
            self._kept[key] = (version, body)
            self._size += len(body) + APIECE
            while self._size > self._most:
                self._forget(self._kept.popitem(last=False)[1])

    def _forget(self, kept: tuple[str, bytes] | None) -> None:
        if kept is not None:
            self._size -= len(kept[1]) + APIECE
