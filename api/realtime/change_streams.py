"""Streams of a user's changes. A subscriber reads the change feed when notified; an idle one holds no connection."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import structlog
from anyio import CapacityLimiter, to_thread

from api.realtime.completion_waiter import PollIntervals
from shared.changes import change_feed
from shared.db.database import Database, StoreError
from shared.models import ChangeEntry

log = structlog.get_logger()

# Proxies close a connection that is silent for a minute.
HEARTBEAT_SECONDS = 15.0
# A stream's key is checked only when the stream begins: a revoked key must not read forever.
MAX_SECONDS = 900.0
# In place of an owner's id: all owners.
ANYONE = "*"


@dataclass(frozen=True)
class ChangeBatch:
    """The reader's new position, and the entries up to it; None: entries are missing, or this is the first batch."""

    number: int
    entries: tuple[ChangeEntry, ...] | None


@dataclass(eq=False)
class _Subscriber:
    # The position of its reader.
    number: int | None
    event: asyncio.Event = field(default_factory=asyncio.Event)


class Streams:
    """The change streams of one process, on one event loop."""

    def __init__(self, database: Database, intervals: PollIntervals | None = None) -> None:
        self._database = database
        self._intervals = intervals or PollIntervals()
        self._poll_seconds = self._intervals.disconnected
        self._subscribers: dict[str, set[_Subscriber]] = {}
        # Dedicated threads limit the connections to the store.
        self._threads = CapacityLimiter(4)
        self._closed = False

    async def follow(self, owner_id: str, after: int | None) -> AsyncGenerator[ChangeBatch | None]:
        """Yield the user's changes until the process shuts down; None: no change for a while.

        Args:
            after: position of the reader; None: the end of the change feed.
        """
        clock = asyncio.get_running_loop().time
        ends_at = clock() + MAX_SECONDS
        with self._subscribed(owner_id, after) as subscriber:
            while not self._closed and clock() < ends_at:
                # Cleared before the read: a later change sets the event.
                subscriber.event.clear()
                batch = await to_thread.run_sync(self._read, owner_id, subscriber.number, limiter=self._threads)
                if batch is not None:
                    subscriber.number = batch.number
                    yield batch
                elif not await self._is_notified(subscriber):
                    yield None

    async def follow_all(self, pause_seconds: float, max_seconds: float) -> AsyncGenerator[bool]:
        """Yield True after changes of any user, and False after `max_seconds` without one.

        Args:
            pause_seconds: after a change, further ones are collected for this time.
            max_seconds: the longest time without a yield.
        """
        clock = asyncio.get_running_loop().time
        ends_at = clock() + MAX_SECONDS
        with self._subscribed(ANYONE, None) as subscriber:
            while not self._closed and clock() < ends_at:
                changed = await self._is_notified(subscriber, max_seconds)
                subscriber.event.clear()
                yield changed
                await asyncio.sleep(pause_seconds)

    def receive(self, ids: Iterable[str]) -> None:
        """Wake the subscribers of these owners, and those that follow all owners."""
        for owner_id in self._subscribers.keys() & {ANYONE, *ids}:
            self._notify(owner_id)

    def set_connected(self, *, is_connected: bool) -> None:
        """Handle a new or a lost subscription; earlier notifications may have been missed."""
        self._poll_seconds = self._intervals.connected if is_connected else self._intervals.disconnected
        if is_connected:
            self._notify(*self._subscribers)

    def close(self) -> None:
        """End all streams: the process is shutting down."""
        self._closed = True
        self._notify(*self._subscribers)

    async def run(self) -> None:
        """Poll for changes without a notification, until cancelled."""
        while True:
            await asyncio.sleep(self._poll_seconds)
            if not self._subscribers:
                continue
            try:
                known = await to_thread.run_sync(self._read_last, list(self._subscribers), limiter=self._threads)
            except StoreError as error:
                log.warning("poll_failed", followed=len(self._subscribers), error=type(error).__name__)
                continue
            for owner_id, number in known.items():
                if any(subscriber.number != number for subscriber in self._subscribers.get(owner_id, ())):
                    self._notify(owner_id)

    async def _is_notified(self, subscriber: _Subscriber, seconds: float | None = None) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_SECONDS if seconds is None else seconds):
                return await subscriber.event.wait()
        return False

    @contextmanager
    def _subscribed(self, owner_id: str, after: int | None) -> Iterator[_Subscriber]:
        subscriber = _Subscriber(after)
        subscribers = self._subscribers.setdefault(owner_id, set())
        subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            subscribers.discard(subscriber)
            if not subscribers:
                self._subscribers.pop(owner_id, None)

    def _notify(self, *owner_ids: str) -> None:
        for owner_id in owner_ids:
            for subscriber in self._subscribers.get(owner_id, ()):
                subscriber.event.set()

    def _read(self, owner_id: str, after: int | None) -> ChangeBatch | None:
        with self._database.reading() as session:
            entries = None if after is None else change_feed.read(session, owner_id, after)
            if entries is None:
                return ChangeBatch(change_feed.last(session, [owner_id]).get(owner_id, 0), None)
            return ChangeBatch(entries[-1].number, tuple(entries)) if entries else None

    def _read_last(self, owner_ids: list[str]) -> dict[str, int]:
        with self._database.reading() as session:
            return change_feed.last(session, owner_ids)
