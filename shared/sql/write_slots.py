"""A limit on concurrent writing transactions, so that one locked row cannot exhaust all connections and slots.

A transaction that waits for a locked row occupies a connection. So some connections are reserved for reads, and one
caller's transactions get at most half of the rest. After one of them has run into its lock timeout, the caller's others
are rejected for a moment: they probably need the same row. A transaction that waits for a slot occupies a thread: if
many wait and none makes progress, all but a few are rejected.

Some rows are needed by all callers: each placement needs nodes and specs. The transactions that need them get half of
the slots together, and those of each caller get half of that.
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

REJECT_SECONDS = 1.0
# The max number of waiting transactions in a share that makes no progress: in the share of one caller, and in one of
# all callers. An API process has 120 threads.
MAX_WAITING = 20
MAX_WAITING_FOR_SHARED = 40
# A share makes no progress if none of its transactions has begun or ended for this time.
STANDSTILL_SECONDS = 0.5
# The share of all placements of sandboxes.
PLACEMENTS = "places"

# The caller for whom this thread or task writes; None: a write without a limit per caller.
caller: ContextVar[str | None] = ContextVar("caller", default=None)


class WriteSlotRefused(PoolTimeout):
    """Another transaction has just run into its lock timeout, or too many wait behind one that does not end."""


def is_lock_timeout(error: Exception) -> bool:
    """Whether the error is a timeout for a lock that another transaction holds."""
    is_own = isinstance(error, OperationalError) and isinstance(error.orig, LockNotAvailable)
    return is_own or isinstance(error, WriteSlotRefused)


class _Share(NamedTuple):
    """Transactions that may need the same row, with the max numbers that write and that wait."""

    key: tuple[str | None, ...]
    max_writing: int
    max_waiting: float = inf


class WriteSlots:
    """The slots of one process for one database."""

    def __init__(self, slots: int) -> None:
        """Allow `slots` concurrent writes, and half as many for one caller or for what all callers share."""
        self._slots = slots
        self._changed = Condition()
        self._total = 0
        self._writing, self._waiting = Counter[_Share](), Counter[_Share]()
        # When a transaction of the share last began or ended, by the process's monotonic clock.
        self._moved_at: dict[_Share, float] = {}
        self._refused_until: dict[str, float] = {}

    @contextmanager
    def slot(self, wait_seconds: float, shared: str | None = None) -> Iterator[None]:
        """Occupy a slot in this block, for the `caller` of this context.

        Args:
            wait_seconds: the timeout for a slot.
            shared: the share of all callers that the transaction belongs to; None: none.

        Raises:
            TimeoutError: SQLAlchemy's; no slot became free before the timeout.
            WriteSlotRefused: waiting for a slot is pointless at present.
        """
        caller_id = caller.get()
        shares = self._shares(caller_id, shared)
        self._enter(caller_id, shares, wait_seconds)
        try:
            yield
        except OperationalError as error:
            self._leave(caller_id, shares, reject=is_lock_timeout(error))
            raise
        except BaseException:
            self._leave(caller_id, shares)
            raise
        self._leave(caller_id, shares)

    def _shares(self, caller_id: str | None, shared: str | None) -> list[_Share]:
        half, quarter = max(1, self._slots // 2), max(1, self._slots // 4)
        shares = [_Share((caller_id,), half, MAX_WAITING)] if caller_id is not None else []
        if shared is not None:
            shares += [_Share((None, shared), half, MAX_WAITING_FOR_SHARED), _Share((caller_id, shared), quarter)]
        return shares

    def _enter(self, caller_id: str | None, shares: list[_Share], wait_seconds: float) -> None:
        until = time.monotonic() + wait_seconds
        with self._changed, self._counted(shares):
            while not self._is_admitted(caller_id, shares):
                left = until - time.monotonic()
                if left <= 0:
                    raise PoolTimeout("too many concurrent transactions")
                self._changed.wait(min(left, STANDSTILL_SECONDS))
            self._total += 1
            self._writing.update(shares)
            self._record_move(shares)

    @contextmanager
    def _counted(self, shares: list[_Share]) -> Iterator[None]:
        """Count the transaction as waiting."""
        for share in shares:
            self._moved_at.setdefault(share, time.monotonic())
        self._waiting.update(shares)
        try:
            yield
        finally:
            self._waiting.subtract(shares)
            self._remove_idle(shares)

    def _leave(self, caller_id: str | None, shares: list[_Share], *, reject: bool = False) -> None:
        with self._changed:
            self._total -= 1
            self._writing.subtract(shares)
            self._record_move(shares)
            self._remove_idle(shares)
            if reject and caller_id is not None:
                now = time.monotonic()
                still = {one: until for one, until in self._refused_until.items() if until > now}
                self._refused_until = still | {caller_id: now + REJECT_SECONDS}
            self._changed.notify_all()

    def _is_admitted(self, caller_id: str | None, shares: list[_Share]) -> bool:
        if caller_id is not None and self._refused_until.get(caller_id, 0.0) > time.monotonic():
            raise WriteSlotRefused("another transaction of this caller timed out waiting for a lock")
        has_room = self._total < self._slots and all(self._writing[share] < share.max_writing for share in shares)
        if not has_room and any(map(self._is_crowded, shares)):
            raise WriteSlotRefused("too many transactions wait for one that does not end")
        return has_room

    def _is_crowded(self, share: _Share) -> bool:
        is_stuck = time.monotonic() - self._moved_at[share] >= STANDSTILL_SECONDS
        return is_stuck and self._waiting[share] > share.max_waiting

    def _record_move(self, shares: list[_Share]) -> None:
        self._moved_at.update(dict.fromkeys(shares, time.monotonic()))

    def _remove_idle(self, shares: list[_Share]) -> None:
        for share in shares:
            if not self._writing[share] and not self._waiting[share]:
                del self._writing[share], self._waiting[share], self._moved_at[share]
