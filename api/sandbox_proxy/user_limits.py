"""Limits on what one user may hold at a time in a process, so that other users get their part."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from api.errors.upstream import TemporarilyUnavailable


class UserLimit:
    """A limit for each user on one kind of thing."""

    def __init__(self, max_held: int, things: str) -> None:
        """Let each user hold `max_held`; `things` is their name in errors."""
        self._max_held, self._things = max_held, things
        self._held = Counter[str]()

    @contextmanager
    def hold(self, owner_id: str) -> Iterator[None]:
        """Hold one more for the duration of the block.

        Raises:
            TemporarilyUnavailable: the user holds the maximum already.
        """
        if self._held[owner_id] >= self._max_held:
            raise TemporarilyUnavailable(
                f"you have reached the limit of {self._max_held} {self._things}; close one, then retry"
            )
        self._held[owner_id] += 1
        try:
            yield
        finally:
            self._held[owner_id] -= 1
            if not self._held[owner_id]:
                del self._held[owner_id]
