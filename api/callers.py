"""Who asks: found out for all requests that wait for it at a time, with one query.

Each key is looked up for each request: a revoked one is of no use from the next request on. But while one query is
under way others come in, and they go together with the next one. So many clients cost hardly more than one.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from shared.errors import Unauthenticated
from shared.store.users import KeyHolder

LookUp = Callable[[list[str]], list[KeyHolder | None]]

# Keys that one query looks up.
MOST = 64


@dataclass(eq=False)
class _Batch:
    """The keys that one query is to look up, and what it finds."""

    keys: list[str] = field(default_factory=list)
    holders: asyncio.Task[list[KeyHolder | None]] | None = None


@dataclass(eq=False)
class _Desk:
    """What one event loop has: its next batch, and the turn of the one that is looked up."""

    open: _Batch = field(default_factory=_Batch)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class Callers:
    """The users behind the keys that come with requests."""

    def __init__(self, look_up: LookUp, unknown: str) -> None:
        """Look keys up so; `unknown` is said of one that is nobody's."""
        self._find_holders, self._unknown = look_up, unknown
        self._desks = WeakKeyDictionary[asyncio.AbstractEventLoop, _Desk]()
        # A thread of its own, so that it waits for nobody's request.
        self._thread = ThreadPoolExecutor(1, "callers")

    async def find(self, key: str) -> KeyHolder:
        """Whose key this is.

        Raises:
            Unauthenticated: nobody's, or it was revoked or has expired.
        """
        loop = asyncio.get_running_loop()
        desk = self._desks.setdefault(loop, _Desk())
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

    async def _look_up(self, desk: _Desk, batch: _Batch) -> list[KeyHolder | None]:
        async with desk.turn:
            if desk.open is batch:
                desk.open = _Batch()
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._find_holders, batch.keys)
