"""A thread pool with fair scheduling: at most one task of each caller runs at a time."""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Any, TypeVar

Result = TypeVar("Result")
Work = Callable[[], None]


class FairThreads:
    """A thread pool that runs at most one task of each caller at a time."""

    def __init__(self, threads: int, name: str) -> None:
        """Use this many threads; `name` is the prefix of their names."""
        self._threads = ThreadPoolExecutor(threads, name)
        self._lock = Lock()
        # The waiting work of each caller whose work runs or waits for a thread.
        self._waiting: dict[str, deque[Work]] = {}

    async def run(self, who: str | None, work: Callable[..., Result], *arguments: Any) -> Result:
        """Run work in a thread, and return its result. With a caller, wait for the caller's earlier work first."""
        future: Future[Result] = Future()

        def complete() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(*arguments))
                except BaseException as error:  # noqa: BLE001 - the result's reader gets it
                    future.set_exception(error)

        self._submit(who, complete)
        return await asyncio.wrap_future(future)

    def _submit(self, who: str | None, work: Work) -> None:
        if who is None:
            self._threads.submit(work)
            return
        with self._lock:
            if who in self._waiting:
                self._waiting[who].append(work)
                return
            self._waiting[who] = deque()
        self._threads.submit(self._run_and_continue, who, work)

    def _run_and_continue(self, who: str, work: Work) -> None:
        work()
        with self._lock:
            if not self._waiting[who]:
                del self._waiting[who]
                return
            following = self._waiting[who].popleft()
        self._threads.submit(self._run_and_continue, who, following)
