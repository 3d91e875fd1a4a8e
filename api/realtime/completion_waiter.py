"""Requests that wait for a wish to settle. They hold no thread and no connection: one look at the store is for all.

Whoever waits is on the list before the first look is taken for it, and each notice asks for another: so no change falls
between a look and the wait after it. Notices may get lost, with a broker or with the process that was to send them:
then the next round finds what has settled.
"""

import asyncio
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

import structlog
from anyio import CapacityLimiter, to_thread
from sqlalchemy.exc import SQLAlchemyError

from shared.conversations import start_tasks
from shared.db.database import Database
from shared.models import Sandbox, StartTask
from shared.sandboxes import queries as sandbox_queries
from shared.sandboxes.queries import ObservedGeneration
from shared.states import Desired

log = structlog.get_logger()


@dataclass(frozen=True)
class PollIntervals:
    """Seconds between two looks at all that is waited for: while notices come, and while nobody knows if they do."""

    hearing: float = 5.0
    blind: float = 1.0


@dataclass(frozen=True)
class AwaitedRow:
    """What is waited for: a sandbox that has answered a wish, or a start task that is final."""

    table: type[Sandbox | StartTask]
    row_id: str
    # Of a sandbox: the generation to be reconciled, and the state that it desires; None: whatever it desires.
    generation: int = 0
    desired: Desired | None = None


class Superseded(Exception):
    """Another state is desired by now: what was waited for is not going to settle."""


class CompletionWaiter:
    """The waiting requests of one process, all on one event loop."""

    def __init__(self, database: Database, intervals: PollIntervals | None = None) -> None:
        """Wait for rows of this store."""
        self._database = database
        self._waiting: dict[str, dict[asyncio.Future[bool], AwaitedRow]] = {}
        self._due: set[str] = set()
        self._bell = asyncio.Event()
        self._intervals = intervals or PollIntervals()
        self._round_seconds = self._intervals.blind
        self._round_at = 0.0
        # A thread of its own, so that it waits for nobody's request.
        self._thread = CapacityLimiter(1)
        self._closed = False

    async def settle(self, awaited_row: AwaitedRow, seconds: float) -> bool:
        """Wait until it is settled, or the time is up, or this process is to end.

        Returns:
            Whether it is settled.

        Raises:
            Superseded: another state is desired than the subject's.
        """
        if self._closed:
            return False
        settled: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(awaited_row.row_id, {})
        waiting[settled] = awaited_row
        try:
            self.hear([awaited_row.row_id])
            async with asyncio.timeout(seconds):
                return await settled
        except TimeoutError:
            return False
        finally:
            del waiting[settled]
            if not waiting:
                self._waiting.pop(awaited_row.row_id, None)

    def hear(self, ids: Iterable[str]) -> None:
        """A notice: look at those of them that somebody waits for."""
        self._due |= self._waiting.keys() & set(ids)
        if self._due:
            self._bell.set()

    def listen(self, *, hears: bool) -> None:
        """From now on notices come, or don't; what came before may have been missed."""
        self._round_seconds = self._intervals.hearing if hears else self._intervals.blind
        self._begin_round()
        self._bell.set()

    def close(self) -> None:
        """Let everybody go who waits, and who comes later: this process is to end."""
        self._closed = True
        for settled in [settled for waiting in self._waiting.values() for settled in waiting]:
            _answer(settled, is_settled=False)

    @property
    def is_closed(self) -> bool:
        """Whether nobody may wait any more."""
        return self._closed

    async def run(self) -> None:
        """Look when there is reason to, until cancelled."""
        while True:
            due_at = self._round_at
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await self._bell.wait()
            self._bell.clear()
            if asyncio.get_running_loop().time() >= due_at:
                self._begin_round()
            await self._look()

    def _begin_round(self) -> None:
        self._due |= self._waiting.keys()
        self._round_at = asyncio.get_running_loop().time() + self._round_seconds

    async def _look(self) -> None:
        due, self._due = self._due, set()
        subjects = {awaited_row for row_id in due for awaited_row in self._waiting.get(row_id, {}).values()}
        if not subjects:
            return
        try:
            found = await to_thread.run_sync(self._find_settled, subjects, limiter=self._thread)
        except SQLAlchemyError as error:
            log.warning("not_looked", waiting=len(subjects), error=type(error).__name__)
            return  # the next round looks again
        for awaited_row, is_superseded in found.items():
            for future, awaited in self._waiting.get(awaited_row.row_id, {}).items():
                if awaited == awaited_row:
                    _answer(future, is_settled=True, is_superseded=is_superseded)

    def _find_settled(self, subjects: Collection[AwaitedRow]) -> dict[AwaitedRow, bool]:
        """Those for which nothing more is to be waited, and whether because they are superseded."""
        boxes = [one for one in subjects if one.table is Sandbox]
        starts = {one.row_id: one for one in subjects if one.table is StartTask}
        answered = sandbox_queries.observed_generations(self._database, {one.row_id for one in boxes}) if boxes else {}
        final = start_tasks.final(self._database, starts) if starts else set()
        found = {starts[row_id]: False for row_id in final}
        for box in boxes:
            state = answered.get(box.row_id)
            if (is_superseded := _is_superseded(box, state)) or _is_answered(box, state):
                found[box] = is_superseded
        return found


def _is_superseded(awaited_row: AwaitedRow, answered: ObservedGeneration | None) -> bool:
    return awaited_row.desired is not None and answered is not None and answered.desired != awaited_row.desired


def _is_answered(awaited_row: AwaitedRow, answered: ObservedGeneration | None) -> bool:
    return answered is None or answered.generation >= awaited_row.generation


def _answer(future: asyncio.Future[bool], *, is_settled: bool, is_superseded: bool = False) -> None:
    if future.done():
        return
    if is_superseded:
        future.set_exception(Superseded())
    else:
        future.set_result(is_settled)
