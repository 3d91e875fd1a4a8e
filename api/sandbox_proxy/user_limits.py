"""What one user may hold at a time in a process, so that there is something left for the others."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from api.errors.upstream import TemporarilyUnavailable


class Shares:
    """The users' shares of one kind of thing."""

    def __init__(self, most: int, things: str) -> None:
        """Let each user hold so many; `things` is what they are called in errors."""
        self._most, self._things = most, things
        self._held = Counter[str]()

    @contextmanager
    def taking(self, owner_id: str) -> Iterator[None]:
        """Hold one more, for the length of the block.

        Raises:
            NotNow: the user holds as many as one may.
        """
        if self._held[owner_id] >= self._most:
            raise TemporarilyUnavailable(
                f"{self._most} {self._things} of yours are open already; close one, and try again"
            )
        self._held[owner_id] += 1
        try:
            yield
        finally:
            self._held[owner_id] -= 1
            if not self._held[owner_id]:
                del self._held[owner_id]
