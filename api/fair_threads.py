"""A thread pool with fair scheduling: at most one task of each caller runs at a time."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from api.caller_slots import CallerSlots

Result = TypeVar("Result")


class FairThreads:
    """A thread pool that runs at most one task of each caller at a time."""

    def __init__(self, threads: int, name: str) -> None:
        """Use this many threads; `name` is the prefix of their names."""
        self._threads = ThreadPoolExecutor(threads, name)
        self._slots = CallerSlots(1)

    async def run(self, caller_id: str | None, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run work in a thread, and return its result. With a caller, wait for the caller's earlier work first.

        The caller's slot is occupied until the work is done, even if nothing waits for its result any more.
        """
        loop = asyncio.get_running_loop()
        slot = asyncio.Semaphore() if caller_id is None else self._slots.of(caller_id)
        await slot.acquire()
        try:
            future = self._threads.submit(work, *arguments)
        except RuntimeError:  # no thread can be started: only this call fails
            slot.release()
            raise

        def release(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(slot.release)

        future.add_done_callback(release)
        return await asyncio.wrap_future(future)
