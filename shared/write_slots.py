"""How many transactions write at a time: so that one row that stays locked takes neither all connections nor all slots.

Whoever waits for a locked row holds a connection meanwhile. So some connections are kept for those who read, and a
caller's transactions get half of the rest at most. Once one of them has waited in vain, the caller's others are refused
for a moment: they most likely want the same row.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Condition

from psycopg.errors import LockNotAvailable
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

REFUSE_SECONDS = 1.0

# For whom this thread, or this task, writes; None: for nobody who must not be favoured.
caller: ContextVar[str | None] = ContextVar("caller", default=None)


class Refused(PoolTimeout):
    """Another transaction of this caller has just waited in vain for a lock."""


def waited_in_vain(error: Exception) -> bool:
    """Whether that was for a lock that somebody else did not let go of."""
    is_own = isinstance(error, OperationalError) and isinstance(error.orig, LockNotAvailable)
    return is_own or isinstance(error, Refused)


class WriteSlots:
    """The slots of one process for one database."""

    def __init__(self, most: int) -> None:
        """Let `most` write at a time, and half as many for one caller."""
        self._most, self._most_of_one = most, max(1, most // 2)
        self._changed = Condition()
        self._writing = Counter[str | None]()
        self._refused_until: dict[str, float] = {}

    @contextmanager
    def slot(self, wait_seconds: float) -> Iterator[None]:
        """Write in this block, for the `caller` of this context.

        Args:
            wait_seconds: how long to wait for a slot.

        Raises:
            TimeoutError: SQLAlchemy's; there was none in time.
            Refused: the caller gets none for a moment.
        """
        who = caller.get()
        self._enter(who, wait_seconds)
        try:
            yield
        except OperationalError as error:
            self._leave(who, refuse=waited_in_vain(error))
            raise
        except BaseException:
            self._leave(who)
            raise
        self._leave(who)

    def _enter(self, who: str | None, wait_seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_refused(who) or self._has_room(who), wait_seconds)
            if self._is_refused(who):
                raise Refused("another transaction of this caller has waited in vain for a lock")
            if not self._has_room(who):
                raise PoolTimeout("too many transactions are under way")
            self._writing[who] += 1

    def _leave(self, who: str | None, *, refuse: bool = False) -> None:
        with self._changed:
            self._writing[who] -= 1
            if not self._writing[who]:
                del self._writing[who]
            if refuse and who is not None:
                now = time.monotonic()
                still = {one: until for one, until in self._refused_until.items() if until > now}
                self._refused_until = still | {who: now + REFUSE_SECONDS}
            self._changed.notify_all()

    def _has_room(self, who: str | None) -> bool:
        of_one = self._most if who is None else self._most_of_one
        return self._writing.total() < self._most and self._writing[who] < of_one

    def _is_refused(self, who: str | None) -> bool:
        return who is not None and self._refused_until.get(who, 0.0) > time.monotonic()
