"""Those who follow their changes: each has a bell, and reads the log when it rings. Between that they hold nothing."""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import structlog
from anyio import CapacityLimiter, to_thread
from sqlalchemy.exc import SQLAlchemyError

from api.errors.upstream import TemporarilyUnavailable
from api.realtime.completion_waiter import PollIntervals
from shared.changes import change_feed
from shared.db.database import Database
from shared.models import ChangeEntry

log = structlog.get_logger()

# Proxies cut off what is silent for a minute.
HEARTBEAT_SECONDS = 15.0
# The key is looked at when a stream begins: one that is revoked must not follow for ever.
MAX_SECONDS = 900.0
# Of one user, in each API process.
MAX_OF_ONE = 100


@dataclass(frozen=True)
class ChangeBatch:
    """What has become known: where the reader is by now, and the entries; None: some are gone, or this is the begin."""

    number: int
    entries: tuple[ChangeEntry, ...] | None


@dataclass(eq=False)
class _Subscriber:
    # Where its reader is.
    number: int | None
    bell: asyncio.Event = field(default_factory=asyncio.Event)


class Streams:
    """The streams of one process, all on one event loop."""

    def __init__(self, database: Database, intervals: PollIntervals | None = None) -> None:
        """Follow the logs of this store."""
        self._database = database
        self._intervals = intervals or PollIntervals()
        self._round_seconds = self._intervals.blind
        self._ears: dict[str, set[_Subscriber]] = {}
        # Threads of their own, and no more of the store's connections.
        self._threads = CapacityLimiter(4)
        self._closed = False

    async def follow(self, owner_id: str, after: int | None) -> AsyncGenerator[ChangeBatch | None]:
        """What changes for a user after that number, until the process is to end; None: nothing for a while.

        Args:
            after: where the reader is; None: at the beginning of its reading, wherever the log is by then.
        """
        clock = asyncio.get_running_loop().time
        ends_at = clock() + MAX_SECONDS
        with self._listening(owner_id, after) as subscriber:
            while not self._closed and clock() < ends_at:
                # Silenced before the look: what comes after it rings again.
                subscriber.bell.clear()
                batch = await to_thread.run_sync(self._read, owner_id, subscriber.number, limiter=self._threads)
                if batch is not None:
                    subscriber.number = batch.number
                    yield batch
                elif not await self._is_rung(subscriber):
                    yield None

    def check_share(self, owner_id: str) -> None:
        """Leave something for others.

        Raises:
            NotNow: so many streams of this user are open that one more is too many.
        """
        if len(self._ears.get(owner_id, ())) >= MAX_OF_ONE:
            raise TemporarilyUnavailable(f"{MAX_OF_ONE} streams of yours are open already; close one, and try again")

    def hear(self, ids: Iterable[str]) -> None:
        """A notice: wake those whose changes it is about."""
        for owner_id in self._ears.keys() & set(ids):
            self._ring(owner_id)

    def listen(self, *, hears: bool) -> None:
        """From now on notices come, or don't; what came before may have been missed."""
        self._round_seconds = self._intervals.hearing if hears else self._intervals.blind
        if hears:
            self._ring(*self._ears)

    def close(self) -> None:
        """Let everybody go: this process is to end."""
        self._closed = True
        self._ring(*self._ears)

    async def run(self) -> None:
        """Find out in rounds what no notice told, until cancelled."""
        while True:
            await asyncio.sleep(self._round_seconds)
            if not self._ears:
                continue
            try:
                known = await to_thread.run_sync(self._read_last, list(self._ears), limiter=self._threads)
            except SQLAlchemyError as error:
                log.warning("not_looked", followed=len(self._ears), error=type(error).__name__)
                continue
            for owner_id, number in known.items():
                if any(subscriber.number != number for subscriber in self._ears.get(owner_id, ())):
                    self._ring(owner_id)

    async def _is_rung(self, subscriber: _Subscriber) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARTBEAT_SECONDS):
                return await subscriber.bell.wait()
        return False

    @contextmanager
    def _listening(self, owner_id: str, after: int | None) -> Iterator[_Subscriber]:
        subscriber = _Subscriber(after)
        ears = self._ears.setdefault(owner_id, set())
        ears.add(subscriber)
        try:
            yield subscriber
        finally:
            ears.discard(subscriber)
            if not ears:
                self._ears.pop(owner_id, None)

    def _ring(self, *owner_ids: str) -> None:
        for owner_id in owner_ids:
            for subscriber in self._ears.get(owner_id, ()):
                subscriber.bell.set()

    def _read(self, owner_id: str, after: int | None) -> ChangeBatch | None:
        with self._database.reading() as session:
            entries = None if after is None else change_feed.read(session, owner_id, after)
            if entries is None:
                return ChangeBatch(change_feed.last(session, [owner_id]).get(owner_id, 0), None)
            return ChangeBatch(entries[-1].number, tuple(entries)) if entries else None

    def _read_last(self, owner_ids: list[str]) -> dict[str, int]:
        with self._database.reading() as session:
            return change_feed.last(session, owner_ids)
