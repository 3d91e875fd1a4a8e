"""Readiness check of the store, with a result within seconds for any state of the store."""

import asyncio
from collections.abc import Callable

from anyio import CapacityLimiter, to_thread

from shared.db.database import Database, StoreTimeout

# Monitors check with timeouts of 5 s or more.
MAX_SECONDS = 3.0


class Readiness:
    """Checks the store with one query at a time, shared by all callers, in a thread that no request uses."""

    def __init__(self, database: Database) -> None:
        self._ping = database.ping
        self._check: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Return when the store has responded.

        Raises:
            OperationalError: SQLAlchemy's; the store is unreachable.
            TimeoutError: SQLAlchemy's; the store has not responded in time.
        """
        if self._check is None or self._check.done():
            self._check = asyncio.create_task(_in_thread(self._ping))
            self._check.add_done_callback(_consume_error)
        done, _ = await asyncio.wait({self._check}, timeout=MAX_SECONDS)
        if not done:
            raise StoreTimeout("the store has not responded in time")
        await self._check


async def _in_thread(ping: Callable[[], None]) -> None:
    await to_thread.run_sync(ping, limiter=CapacityLimiter(1))


def _consume_error(check: asyncio.Task[None]) -> None:
    """Retrieve the error of a check that no caller awaits, so that asyncio does not log it."""
    if not check.cancelled():
        check.exception()
