"""A limit on the bytes that the websockets of each user buffer in a process."""

import asyncio
import sys
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from api.errors.limits import TooManyRequests

# A websocket that keeps no more bytes is never closed because of its user's other websockets.
SMALL_BYTES = 64 * 1024

Result = TypeVar("Result")


class BufferLimit:
    """The limit of one process. Not thread-safe."""

    def __init__(self, of_user: int) -> None:
        """Let the websockets of each user keep `of_user` bytes."""
        self.of_user = of_user
        self.held = Counter[str]()

    @contextmanager
    def share(self, owner_id: str) -> Iterator["Share"]:
        """Count the bytes of a websocket for the duration of the block."""
        share = Share(self, owner_id)
        try:
            yield share
        finally:
            share.release()


class Share:
    """The bytes of one websocket, by the place that keeps them."""

    def __init__(self, limit: BufferLimit, owner_id: str) -> None:
        self._limit, self._owner_id = limit, owner_id
        self._sizes = Counter[str]()
        self._exceeded = asyncio.Event()
        self._is_released = False

    @property
    def is_exceeded(self) -> bool:
        """Whether the websocket has to be closed."""
        return self._exceeded.is_set()

    def note(self, place: str, size: int) -> None:
        """Count `size` bytes at a place from now on; nothing after the release, when a client may still send."""
        if self._is_released:
            return
        growth = size - self._sizes[place]
        self._sizes[place] = size
        self._limit.held[self._owner_id] += growth
        is_small = self._sizes.total() <= SMALL_BYTES
        if growth > 0 and not is_small and self._limit.held[self._owner_id] > self._limit.of_user:
            self._exceeded.set()

    @contextmanager
    def hold(self, place: str, message: str | bytes) -> Iterator[None]:
        """Count a message that is being sent, and its copy in a connection's buffer, for the duration of the block."""
        self.note(place, sys.getsizeof(message) + len(message))
        try:
            yield
        finally:
            self.note(place, 0)

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work`; cancel it if the user's websockets exceed the limit and this one grew last.

        Raises:
            TooManyRequests: the work was cancelled.
        """
        tasks = asyncio.create_task(work), asyncio.create_task(self._exceeded.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if not tasks[0].done():
                raise TooManyRequests(f"your websockets keep more than {self._limit.of_user} unread bytes; read faster")
            return await tasks[0]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def release(self) -> None:
        """Stop counting the bytes of this websocket."""
        self._is_released = True
        self._limit.held[self._owner_id] -= self._sizes.total()
        self._sizes.clear()
        if not self._limit.held[self._owner_id]:
            del self._limit.held[self._owner_id]
