"""Limits on users' concurrent streams, downloads, websockets, requests to sandboxes and waits in a process."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from api.errors.limits import TooManyRequests
from api.errors.upstream import TemporarilyUnavailable


class ConcurrencyLimit:
    """A limit on concurrent uses of one kind, for each user and for all users of this process together."""

    def __init__(self, noun: str, *, of_user: int, of_process: int) -> None:
        """Let each user hold `of_user`, and all users `of_process`; `noun` names what they hold in errors."""
        self._noun, self._of_user, self._of_process = noun, of_user, of_process
        self._held = Counter[str]()
        self._total = 0

    @contextmanager
    def hold(self, owner_id: str) -> Iterator[None]:
        """Hold one more for the duration of the block.

        Raises:
            TooManyRequests: the user holds the maximum already.
            TemporarilyUnavailable: all users together hold the maximum.
        """
        self._check(owner_id)
        self._held[owner_id] += 1
        self._total += 1
        try:
            yield
        finally:
            self._total -= 1
            self._held[owner_id] -= 1
            if not self._held[owner_id]:
                del self._held[owner_id]

    def _check(self, owner_id: str) -> None:
        if self._held[owner_id] >= self._of_user:
            raise TooManyRequests(f"you have reached the limit of {self._of_user} {self._noun}; close one, then retry")
        if self._total >= self._of_process:
            raise TemporarilyUnavailable(f"too many {self._noun} are open in this process; retry later")
