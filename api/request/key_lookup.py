"""Lookup of API keys, batched: one query serves all requests that wait for it.

Each key is looked up for each request: a revoked key fails from the next request on. Keys that arrive during a query
are looked up together by the next query. So the number of concurrent clients hardly affects the cost.
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

# Keys in one query.
MAX_BATCH = 64


@dataclass(eq=False)
class _Batch:
    """Keys for one query, and the task that runs it."""

    keys: list[str] = field(default_factory=list)
    users: asyncio.Task[list[AuthenticatedKey | None]] | None = None


@dataclass(eq=False)
class _LoopState:
    """The batches of one event loop."""

    open: _Batch = field(default_factory=_Batch)
    # Held by the batch whose query runs.
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class BatchedKeyLookup:
    """Finds the users of keys, with one query for many requests."""

    def __init__(self, look_up: LookUp, unknown: str) -> None:
        """Look up keys with `look_up`; `unknown` is the error message for a key without a user."""
        self._look_up, self._unknown = look_up, unknown
        self._states = WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopState]()
        # A dedicated thread: a lookup does not wait for other requests' threads.
        self._thread = ThreadPoolExecutor(1, "callers")

    async def find(self, key: str) -> AuthenticatedKey:
        """Return the user that the key belongs to.

        Raises:
            Unauthenticated: the key is unknown, revoked or expired.
        """
        loop = asyncio.get_running_loop()
        state = self._states.setdefault(loop, _LoopState())
        batch, index = state.open, len(state.open.keys)
        batch.keys.append(key)
        if batch.users is None:
            batch.users = loop.create_task(self._run_batch(state, batch))
        if len(batch.keys) == MAX_BATCH:
            state.open = _Batch()
        # A cancelled request must not cancel the query: other requests wait for it.
        user = (await asyncio.shield(batch.users))[index]
        if user is None:
            raise Unauthenticated(self._unknown)
        return user

    async def _run_batch(self, state: _LoopState, batch: _Batch) -> list[AuthenticatedKey | None]:
        async with state.lock:
            if state.open is batch:
                state.open = _Batch()
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._look_up, batch.keys)


class KeyUseRecorder:
    """Records the last use of keys, for one process on its event loop."""

    def __init__(self, database: Database) -> None:
        """Record uses in this store."""
        self._database = database
        # Ids of keys whose write is under way. Other requests wait neither for it nor for each other: it is one row.
        self._writing: set[str] = set()

    async def note(self, key_id: str) -> None:
        """Record that the key is used now.

        Raises:
            StoreError: the write failed. Only the request that writes gets the error.
        """
        if key_id in self._writing:
            return
        self._writing.add(key_id)
        try:
            await run_in_threadpool(api_keys.record_use, self._database, key_id)
        finally:
            self._writing.discard(key_id)
