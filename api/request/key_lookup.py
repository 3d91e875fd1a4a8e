"""Who asks: found out for all requests that wait for it at a time, with one query.

Each key is looked up for each request: a revoked one is of no use from the next request on. But while one query is
under way others come in, and they go together with the next one. So many clients cost hardly more than one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from starlette.concurrency import run_in_threadpool

from shared.db.database import Database
from shared.errors import Unauthenticated
from shared.users import api_keys
from shared.users.api_keys import AuthenticatedKey

LookUp = Callable[[list[str]], list[AuthenticatedKey | None]]

# Keys that one query looks up.
MOST = 64


@dataclass(eq=False)
class _Batch:
    """The keys that one query is to look up, and what it finds."""

    keys: list[str] = field(default_factory=list)
    holders: asyncio.Task[list[AuthenticatedKey | None]] | None = None


@dataclass(eq=False)
class _LoopState:
    """What one event loop has: its next batch, and the turn of the one that is looked up."""

    open: _Batch = field(default_factory=_Batch)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class BatchedKeyLookup:
    """The users behind the keys that come with requests."""

    def __init__(self, look_up: LookUp, unknown: str) -> None:
        """Look keys up so; `unknown` is said of one that is nobody's."""
        self._find_holders, self._unknown = look_up, unknown
        self._desks = WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopState]()
        # A thread of its own, so that it waits for nobody's request.
        self._thread = ThreadPoolExecutor(1, "callers")

    async def find(self, key: str) -> AuthenticatedKey:
        """Whose key this is.

        Raises:
            Unauthenticated: nobody's, or it was revoked or has expired.
        """
        loop = asyncio.get_running_loop()
        desk = self._desks.setdefault(loop, _LoopState())
        batch, place = desk.open, len(desk.open.keys)
        batch.keys.append(key)
        if batch.holders is None:
            batch.holders = loop.create_task(self._look_up(desk, batch))
        if len(batch.keys) == MOST:
            desk.open = _Batch()
        # The others wait for it too: whoever goes must not end it.
        holder = (await asyncio.shield(batch.holders))[place]
        if holder is None:
            raise Unauthenticated(self._unknown)
        return holder

    async def _look_up(self, desk: _LoopState, batch: _Batch) -> list[AuthenticatedKey | None]:
        async with desk.turn:
            if desk.open is batch:
                desk.open = _Batch()
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._find_holders, batch.keys)


class KeyUseRecorder:
    """The uses of keys that this process writes down, on its event loop."""

    def __init__(self, database: Database) -> None:
        """Write them down in this store."""
        self._database = database
        # What is being written. The others need not wait for it, nor for each other: it is one row.
        self._writing: set[str] = set()

    async def note(self, key_id: str) -> None:
        """The key is used now, and that is worth writing down.

        Raises:
            SQLAlchemyError: it could not be written; only who writes is told.
        """
        if key_id in self._writing:
            return
        self._writing.add(key_id)
        try:
            await run_in_threadpool(api_keys.record_use, self._database, key_id)
        finally:
            self._writing.discard(key_id)
