"""A max for what is under way at a time for each of many."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Concurrency:
    """Counts what is under way in this process, by id."""

    def __init__(self, most: int) -> None:
        """Let so many be under way for each id."""
        self._most = most
        self._under_way = Counter[str]()
        self._lock = threading.Lock()

    @contextmanager
    def taking(self, key: str) -> Iterator[bool]:
        """Whether there was a place; it is taken for the length of the block."""
        with self._lock:
            is_free = self._under_way[key] < self._most
            self._under_way[key] += is_free
        try:
            yield is_free
        finally:
            with self._lock:
                self._under_way[key] -= is_free
                if not self._under_way[key]:
                    del self._under_way[key]
