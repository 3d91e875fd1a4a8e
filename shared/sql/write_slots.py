"""How many transactions write at a time: so that one row that stays locked takes neither all connections nor all slots.

Whoever waits for a locked row holds a connection meanwhile. So some connections are kept for those who read, and a
caller's transactions get half of the rest at most. Once one of them has waited in vain, the caller's others are refused
for a moment: they most likely want the same row. Whoever waits for a slot holds a thread: of many who wait while
nobody of theirs gets on, all but a few are refused.

Some rows are needed by all callers, as nodes and specs are by those who need a place for a sandbox. Their transactions
get half of the slots together, and each caller's get half of that.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import inf
from threading import Condition
from typing import NamedTuple

from psycopg.errors import LockNotAvailable
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

REFUSE_SECONDS = 1.0
# More than so many transactions wait for a slot only while others of theirs end: of one caller, and of all callers for
# what they share. An API process has 120 threads.
MAX_WAITING = 20
MAX_WAITING_FOR_SHARED = 40
# None of theirs has ended for so long: they do not get on.
STANDSTILL_SECONDS = 0.5
# What all who need a place for a sandbox share.
PLACES = "places"

# For whom this thread, or this task, writes; None: for nobody who must not be favoured.
caller: ContextVar[str | None] = ContextVar("caller", default=None)


class Refused(PoolTimeout):
    """Another transaction has just waited in vain for a lock, or is waiting for one with many behind it."""


def waited_in_vain(error: Exception) -> bool:
    """Whether that was for a lock that somebody else did not let go of."""
    is_own = isinstance(error, OperationalError) and isinstance(error.orig, LockNotAvailable)
    return is_own or isinstance(error, Refused)


class _Share(NamedTuple):
    """Transactions that may want the same row: so many of them write, or wait for it, at a time at most."""

    key: tuple[str | None, ...]
    most: int
    most_waiting: float = inf


class WriteSlots:
    """The slots of one process for one database."""

    def __init__(self, most: int) -> None:
        """Let `most` write at a time, and half as many for one caller, or for what all callers share."""
        self._most = most
        self._changed = Condition()
        self._total = 0
        self._writing, self._waiting = Counter[_Share](), Counter[_Share]()
        # When one of theirs last began or ended, by the process's monotonic clock.
        self._moved_at: dict[_Share, float] = {}
        self._refused_until: dict[str, float] = {}

    @contextmanager
    def slot(self, wait_seconds: float, shared: str | None = None) -> Iterator[None]:
        """Write in this block, for the `caller` of this context.

        Args:
            wait_seconds: how long to wait for a slot.
            shared: what the transaction needs that other callers' do, too.

        Raises:
            TimeoutError: SQLAlchemy's; there was none in time.
            Refused: the caller gets none for a moment.
        """
        who = caller.get()
        shares = self._shares(who, shared)
        self._enter(who, shares, wait_seconds)
        try:
            yield
        except OperationalError as error:
            self._leave(who, shares, refuse=waited_in_vain(error))
            raise
        except BaseException:
            self._leave(who, shares)
            raise
        self._leave(who, shares)

    def _shares(self, who: str | None, shared: str | None) -> list[_Share]:
        half, quarter = max(1, self._most // 2), max(1, self._most // 4)
        found = [_Share((who,), half, MAX_WAITING)] if who is not None else []
        if shared is not None:
            found += [_Share((None, shared), half, MAX_WAITING_FOR_SHARED), _Share((who, shared), quarter)]
        return found

    def _enter(self, who: str | None, shares: list[_Share], wait_seconds: float) -> None:
        until = time.monotonic() + wait_seconds
        with self._changed, self._counted(shares):
            while not self._is_admitted(who, shares):
                left = until - time.monotonic()
                if left <= 0:
                    raise PoolTimeout("too many transactions are under way")
                self._changed.wait(min(left, STANDSTILL_SECONDS))
            self._total += 1
            self._writing.update(shares)
            self._note_move(shares)

    @contextmanager
    def _counted(self, shares: list[_Share]) -> Iterator[None]:
        """Count as one that waits."""
        for share in shares:
            self._moved_at.setdefault(share, time.monotonic())
        self._waiting.update(shares)
        try:
            yield
        finally:
            self._waiting.subtract(shares)
            self._forget_idle(shares)

    def _leave(self, who: str | None, shares: list[_Share], *, refuse: bool = False) -> None:
        with self._changed:
            self._total -= 1
            self._writing.subtract(shares)
            self._note_move(shares)
            self._forget_idle(shares)
            if refuse and who is not None:
                now = time.monotonic()
                still = {one: until for one, until in self._refused_until.items() if until > now}
                self._refused_until = still | {who: now + REFUSE_SECONDS}
            self._changed.notify_all()

    def _is_admitted(self, who: str | None, shares: list[_Share]) -> bool:
        """Whether there is a slot.

        Raises:
            Refused: there is no use in waiting for one.
        """
        if who is not None and self._refused_until.get(who, 0.0) > time.monotonic():
            raise Refused("another transaction of this caller has waited in vain for a lock")
        has_room = self._total < self._most and all(self._writing[share] < share.most for share in shares)
        if not has_room and any(map(self._is_crowded, shares)):
            raise Refused("too many transactions wait for one that does not end")
        return has_room

    def _is_crowded(self, share: _Share) -> bool:
        stands_still = time.monotonic() - self._moved_at[share] >= STANDSTILL_SECONDS
        return stands_still and self._waiting[share] > share.most_waiting

    def _note_move(self, shares: list[_Share]) -> None:
        self._moved_at.update(dict.fromkeys(shares, time.monotonic()))

    def _forget_idle(self, shares: list[_Share]) -> None:
        for share in shares:
            if not self._writing[share] and not self._waiting[share]:
                del self._writing[share], self._waiting[share], self._moved_at[share]
