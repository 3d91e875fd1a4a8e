"""Traffic is use: it puts a sandbox's deadlines off, by no more writes than its events would cost."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from shared.db.database import Database
from shared.sandboxes import deadlines
from shared.sandboxes.access import SandboxAccess

log = structlog.get_logger()

# However soon a sandbox is to be frozen.
LEAST_SECONDS = 0.1


class ActivityRecorder:
    """The uses that this process has seen, on its event loop."""

    def __init__(self, database: Database) -> None:
        """Write them down in this store."""
        self._database = database
        # Written down a moment ago, or being written.
        self._recent: set[str] = set()
        self._writing: set[asyncio.Task[None]] = set()

    @contextmanager
    def during(self, seen: SandboxAccess) -> Iterator[None]:
        """What is served in this block uses the sandbox, from its beginning to its end."""
        self.note(seen)
        seconds = _resolution(seen)
        pulse = _Pulse(seconds, lambda: self._write(seen.id, seconds))
        try:
            yield
        finally:
            pulse.stop()

    def note(self, seen: SandboxAccess) -> None:
        """Something has used the sandbox just now; that is written down unless it was lately."""
        if deadlines.is_use_stale(seen):
            self._write(seen.id, _resolution(seen))

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
        except SQLAlchemyError as error:
            log.warning("use_not_recorded", sandbox=sandbox_id, error=type(error).__name__)

    def _commit(self, sandbox_id: str) -> None:
        with self._database.transaction() as session:
            deadlines.record_use(session, sandbox_id)


class _Pulse:
    """Does something again and again, and costs next to nothing if it is stopped before the first time."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self._seconds, self._act = seconds, act
        self._arm()

    def stop(self) -> None:
        self._timer.cancel()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._beat)

    def _beat(self) -> None:
        self._arm()
        self._act()


def _resolution(seen: SandboxAccess) -> float:
    return max(deadlines.use_resolution(seen).total_seconds(), LEAST_SECONDS)
