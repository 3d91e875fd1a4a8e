"""Whether the store answers: found out within seconds, however it is."""

import asyncio
from collections.abc import Callable
from functools import partial

from anyio import CapacityLimiter, to_thread
from sqlalchemy import text
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shared.db.database import Database

# Those who watch over a service ask with timeouts of 5 s or more.
MAX_SECONDS = 3.0


class Readiness:
    """Asks the store one question at a time, for all who want to know, in a thread that no request can take."""

    def __init__(self, database: Database) -> None:
        """Ask nothing yet."""
        self._ask = partial(_ask, database)
        self._asked: asyncio.Task[None] | None = None

    async def check(self) -> None:
        """Return once the store has answered.

        Raises:
            OperationalError: SQLAlchemy's; the store is away.
            TimeoutError: SQLAlchemy's; it has not answered in time.
        """
        if self._asked is None or self._asked.done():
            self._asked = asyncio.create_task(_in_thread(self._ask))
            self._asked.add_done_callback(_take_note)
        done, _ = await asyncio.wait({self._asked}, timeout=MAX_SECONDS)
        if not done:
            raise PoolTimeout("the store has not answered in time")
        await self._asked


async def _in_thread(ask: Callable[[], None]) -> None:
    await to_thread.run_sync(ask, limiter=CapacityLimiter(1))


def _ask(database: Database) -> None:
    with database.reading() as session:
        session.connection().execute(text("SELECT 1"))


def _take_note(asked: asyncio.Task[None]) -> None:
    """The error of a question that nobody waits for any more is nobody's."""
    if not asked.cancelled():
        asked.exception()
