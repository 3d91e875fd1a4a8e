"""Requests that wait for a row to reach its desired state.

Such a request holds no thread and no connection: one query reads the rows of all waiting requests.

A request registers before its row is read for the first time, and each notification causes another read. So no change
is missed between a read and the wait after it. If a notification gets lost, with a broker or with the process that was
to publish it, the next poll finds the change.
"""

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

import structlog
from anyio import CapacityLimiter, to_thread

from shared.conversations import start_tasks
from shared.db.database import Database, StoreError
from shared.models import Sandbox, StartTask
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.queries import ObservedGeneration
from shared.states import Desired

log = structlog.get_logger()


@dataclass(frozen=True)
class PollIntervals:
    """Seconds between two polls of all awaited rows.

    `connected` applies while the subscription delivers notifications, `disconnected` while it is down.
    """

    connected: float = 5.0
    disconnected: float = 1.0


@dataclass(frozen=True)
class AwaitedRow:
    """A row that a request waits for: a sandbox until its generation is observed, a start task until it is final."""

    table: type[Sandbox | StartTask]
    row_id: str
    # Sandboxes only: the generation to be observed.
    generation: int = 0
    # Sandboxes only: the desired state that the request set. None: any desired state.
    desired: Desired | None = None


class Superseded(Exception):
    """The sandbox has another desired state now: the awaited one will not be reached."""


class CompletionWaiter:
    """The waiting requests of one process, all on one event loop."""

    def __init__(self, database: Database, intervals: PollIntervals | None = None) -> None:
        self._database = database
        self._waiting: dict[str, dict[asyncio.Future[bool], AwaitedRow]] = {}
        self._due: set[str] = set()
        self._event = asyncio.Event()
        self._intervals = intervals or PollIntervals()
        self._poll_seconds = self._intervals.disconnected
        self._poll_at = 0.0
        # A separate thread: reading does not queue behind requests.
        self._thread = CapacityLimiter(1)
        # The process is shutting down, so no request may wait.
        self.is_closed = False

    async def settle(self, awaited_row: AwaitedRow, seconds: float) -> bool:
        """Wait until the row has completed, `seconds` have passed, or the process shuts down.

        Returns:
            Whether the row has completed.

        Raises:
            Superseded: the sandbox has another desired state than the awaited one.
        """
        if self.is_closed:
            return False
        completed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(awaited_row.row_id, {})
        waiting[completed] = awaited_row
        try:
            self.receive([awaited_row.row_id])
            async with asyncio.timeout(seconds):
                return await completed
        except TimeoutError:
            return False
        finally:
            del waiting[completed]
            if not waiting:
                self._waiting.pop(awaited_row.row_id, None)

    def receive(self, ids: Iterable[str]) -> None:
        """Handle a notification: schedule a read of those of the rows that requests wait for."""
        self._due |= self._waiting.keys() & set(ids)
        if self._due:
            self._event.set()

    def set_connected(self, *, is_connected: bool) -> None:
        """Set the poll interval for a subscription that is up, or down, from now on.

        Notifications before this may have been missed, so all awaited rows are read now.
        """
        self._poll_seconds = self._intervals.connected if is_connected else self._intervals.disconnected
        self._begin_poll()
        self._event.set()

    def close(self) -> None:
        """End all waits, and make later ones return immediately: the process shuts down."""
        self.is_closed = True
        for completed in [completed for waiting in self._waiting.values() for completed in waiting]:
            _resolve(completed, is_completed=False)

    async def run(self) -> None:
        """Read awaited rows on each notification and at each poll, until cancelled."""
        while True:
            poll_at = self._poll_at
            with suppress(TimeoutError):
                async with asyncio.timeout_at(poll_at):
                    await self._event.wait()
            self._event.clear()
            if asyncio.get_running_loop().time() >= poll_at:
                self._begin_poll()
            await self._read_due()

    def _begin_poll(self) -> None:
        self._due |= self._waiting.keys()
        self._poll_at = asyncio.get_running_loop().time() + self._poll_seconds

    async def _read_due(self) -> None:
        due, self._due = self._due, set()
        rows = {row for row_id in due for row in self._waiting.get(row_id, {}).values()}
        if not rows:
            return
        try:
            found = await to_thread.run_sync(self._find_completed, rows, limiter=self._thread)
        except StoreError as error:
            log.warning("awaited_rows_not_read", waiting=len(rows), error=type(error).__name__)
            return  # the next poll reads them
        for row, is_superseded in found.items():
            for future, awaited in self._waiting.get(row.row_id, {}).items():
                if awaited == row:
                    _resolve(future, is_completed=True, is_superseded=is_superseded)

    def _find_completed(self, rows: Collection[AwaitedRow]) -> dict[AwaitedRow, bool]:
        """The rows whose waits end now, each with whether it is superseded."""
        sandboxes = [row for row in rows if row.table is Sandbox]
        tasks = {row.row_id: row for row in rows if row.table is StartTask}
        ids = {row.row_id for row in sandboxes}
        observed = sandbox_queries.observed_generations(self._database, ids) if ids else {}
        final = start_tasks.final(self._database, tasks) if tasks else set()
        found = {tasks[task_id]: False for task_id in final}
        for row in sandboxes:
            state = observed.get(row.row_id)
            if (is_superseded := _is_superseded(row, state)) or _is_observed(row, state):
                found[row] = is_superseded
        return found


def _is_superseded(row: AwaitedRow, state: ObservedGeneration | None) -> bool:
    return row.desired is not None and state is not None and state.desired != row.desired


def _is_observed(row: AwaitedRow, state: ObservedGeneration | None) -> bool:
    return state is None or state.generation >= row.generation


def _resolve(future: asyncio.Future[bool], *, is_completed: bool, is_superseded: bool = False) -> None:
    if future.done():
        return
    if is_superseded:
        future.set_exception(Superseded())
    else:
        future.set_result(is_completed)
