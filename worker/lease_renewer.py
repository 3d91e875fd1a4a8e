"""Work that may outlast a lease: its lease is renewed while it makes progress, and long calls are supervised."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from time import monotonic
from typing import Any

import structlog

from shared.db.database import Database, StoreError
from shared.leasing import renewals

log = structlog.get_logger()

# A lease without progress is not renewed after this time, which is more than two calls to an engine may take.
STALL_SECONDS = 20.0
# Progress of a run that is older does not count.
MAX_RUN_SECONDS = 3600.0
# Pause between two checks during a long call.
WATCH_SECONDS = 1.0
# Set when the caller of the work in this context stops waiting for it.
_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


class LeaseRenewer:
    """Renewer of all held leases. One thread renews each of them three times per lease duration, table by table."""

    def __init__(self, database: Database, owner: str, seconds: float) -> None:
        """Renew leases of `seconds` for `owner`, a name that no other process has.

        Args:
            database: has connections that no job uses, however many jobs wait for locks.
        """
        self.owner = owner
        self.seconds = seconds
        self.database = database
        self._held: dict[tuple[type[Any], str], int] = {}
        # For each holder, by the monotonic clock: when it last made progress, and when its progress ceases to count.
        self._progress: dict[tuple[type[Any], str], float] = {}
        self._ends: dict[tuple[type[Any], str], float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def holding(self, table: type[Any], row: Any) -> Iterator[None]:
        """Renew the lease on this row for the length of the block."""
        key = (table, row.id)
        with self._lock:
            self._held[key], self._progress[key] = row.fence, monotonic()
            self._ends[key] = monotonic() + MAX_RUN_SECONDS
        try:
            yield
        finally:
            self._drop(key, row.fence)

    def mark_progress(self, table: type[Any], row: Any, seconds: float = 0.0) -> None:
        """Record that the holder of this row makes progress.

        Args:
            seconds: what its next call may take beyond `STALL_SECONDS`; the call has a timeout of its own.
        """
        key = (table, row.id)
        with self._lock:
            if self._held.get(key) == row.fence:
                self._progress[key] = min(monotonic() + seconds, self._ends[key])

    def renew_all(self) -> None:
        """Renew every held lease. A lost lease is dropped: its holder's next write fails."""
        self._drop_stalled()
        with self._lock:
            held = list(self._held.items())
        for table in {table for (table, _), _ in held}:
            self._renew(table, {row_id: fence for (of_table, row_id), fence in held if of_table is table})

    def _drop_stalled(self) -> None:
        """Drop the leases whose holders make no progress, so that other workers can claim the rows."""
        before = monotonic() - STALL_SECONDS
        with self._lock:
            stalled = [(key, fence) for key, fence in self._held.items() if self._progress[key] < before]
        for (table, row_id), fence in stalled:
            log.warning("lease_stalled", table=table.__tablename__, row=row_id, seconds=STALL_SECONDS)
            self._drop((table, row_id), fence)

    def _renew(self, table: type[Any], fences: dict[str, int]) -> None:
        try:
            with self.database.transaction() as session:
                lapsed = renewals.renew(session, table, fences, self.seconds)
        except StoreError as error:
            log.warning("leases_not_renewed", table=table.__tablename__, error=type(error).__name__)
            return
        for row_id in lapsed.locked:
            log.warning("lease_not_renewed", row=row_id, error="its row is locked")
        for row_id in lapsed.lost:
            # Its holder may have released it just now.
            log.info("lease_not_held", table=table.__tablename__, row=row_id, fence=fences[row_id])
            self._drop((table, row_id), fences[row_id])

    def _drop(self, key: tuple[type[Any], str], fence: int) -> None:
        """Drop this lease, unless another thread has claimed the row since with a newer fencing token."""
        with self._lock:
            if self._held.get(key) == fence:
                del self._held[key], self._progress[key], self._ends[key]


def begin(work: Callable[[], None]) -> Future[None]:
    """Begin `work` in a thread of its own, which does not delay the process's end."""
    done: Future[None] = Future()
    threading.Thread(target=copy_context().run, args=(_run, work, done), daemon=True, name="watched").start()
    return done


def await_watched(done: Future[None], watch: Callable[[], None], first_seconds: float = 0.0) -> None:
    """Wait for the end of work that was begun, calling `watch` until then, as `run_watched` does.

    Raises:
        Exception: any error of the work or of `watch`. After an error of `watch` the work continues.
    """
    seconds = max(first_seconds, WATCH_SECONDS)
    while not wait([done], timeout=seconds).done:
        watch()
        seconds = WATCH_SECONDS
    done.result()


class SharedCalls:
    """Calls that several callers wait for: at most one at a time for each key, shared by all callers with that key."""

    def __init__(self) -> None:
        self._begun: dict[str, Future[None]] = {}
        self._lock = threading.Lock()

    def begin(self, key: str, work: Callable[[], None]) -> Future[None]:
        """Return the running call for this key; start `work` if there is none. It continues even if no caller waits."""
        with self._lock:
            call = self._begun.get(key)
            if call is None or call.done():
                call = self._begun[key] = begin(work)
            return call


class Abandoned(Exception):
    """Raised in work whose caller has stopped waiting for it."""


def run_watched(work: Callable[[], None], watch: Callable[[], None], first_seconds: float = 0.0) -> None:
    """Run `work`, and call `watch` every second until its end, first after `first_seconds` seconds or one second.

    Raises:
        Exception: any error of `work` or `watch`. After an error of `watch`, `work` is abandoned: it ends by its own
            timeouts, or where it calls `require_awaited`.
    """
    abandoned = threading.Event()
    token = _abandoned.set(abandoned)
    try:
        await_watched(begin(work), watch, first_seconds)
    except BaseException:
        abandoned.set()
        raise
    finally:
        _abandoned.reset(token)


def require_awaited() -> None:
    """Stop work that its caller has abandoned.

    Raises:
        Abandoned: the caller no longer waits for the work.
    """
    abandoned = _abandoned.get()
    if abandoned is not None and abandoned.is_set():
        raise Abandoned


def _run(work: Callable[[], None], done: Future[None]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
        done.set_exception(error)
    else:
        done.set_result(None)
