"""Records traffic as activity, which postpones a sandbox's deadlines."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from starlette.concurrency import run_in_threadpool

from shared.db.database import Database, StoreError
from shared.sandboxes import deadlines
from shared.sandboxes.access import SandboxAccess

log = structlog.get_logger()

# The least time between two writes, however short a sandbox's deadline is.
MIN_SECONDS = 0.1


class ActivityRecorder:
    """Records the activity of sandboxes that this process serves, on its event loop."""

    def __init__(self, database: Database) -> None:
        self._database = database
        # Sandboxes whose activity was just written, or is being written.
        self._recent: set[str] = set()
        self._writing: set[asyncio.Task[None]] = set()

    @contextmanager
    def during(self, sandbox: SandboxAccess) -> Iterator[None]:
        """Record activity at the beginning of the block, and periodically until its end."""
        self.record(sandbox)
        seconds = _resolution(sandbox)
        timer = _Interval(seconds, lambda: self._write(sandbox.id, seconds))
        try:
            yield
        finally:
            timer.stop()

    def record(self, sandbox: SandboxAccess) -> None:
        """Record that the sandbox is active now, unless the last recorded activity is recent enough."""
        if deadlines.is_activity_stale(sandbox):
            self._write(sandbox.id, _resolution(sandbox))

    def _write(self, sandbox_id: str, seconds: float) -> None:
        if sandbox_id in self._recent:
            return
        self._recent.add(sandbox_id)
        asyncio.get_running_loop().call_later(seconds / 2, self._recent.discard, sandbox_id)
        task = asyncio.create_task(self._record(sandbox_id))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _record(self, sandbox_id: str) -> None:
        try:
            await run_in_threadpool(self._commit, sandbox_id)
        except StoreError as error:
            log.warning("activity_not_recorded", sandbox=sandbox_id, error=type(error).__name__)

    def _commit(self, sandbox_id: str) -> None:
        with self._database.transaction() as session:
            deadlines.record_activity(session, sandbox_id)


class _Interval:
    """Calls a function at an interval. Costs next to nothing if it is stopped before the first call."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._seconds, self._act = seconds, act
        self._schedule()

    def stop(self) -> None:
        self._timer.cancel()

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._run)

    def _run(self) -> None:
        self._schedule()
        self._act()


def _resolution(sandbox: SandboxAccess) -> float:
    return max(deadlines.activity_resolution(sandbox).total_seconds(), MIN_SECONDS)
