"""Waits for rows to complete: no wake-up is lost, no notification is needed, and a wait costs nothing but memory."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import pytest
from anyio import to_thread
from sqlalchemy import ClauseElement
from sqlalchemy.exc import OperationalError

from api.realtime.completion_waiter import AwaitedRow, CompletionWaiter, PollIntervals
from shared.db.database import Database
from shared.models import Sandbox, StartTask
from shared.states import Stage, Status
from tests.factories import ApiUser, make_sandbox, make_start_task

Result = TypeVar("Result")
# A poll would come far too late to make a test pass.
NEVER = PollIntervals(connected=1000, disconnected=1000)
OFTEN = PollIntervals(connected=0.02, disconnected=0.02)
LONG = 60.0


@pytest.fixture
def sandbox(database: Database, user: ApiUser) -> Sandbox:
    """A sandbox whose generation has not been observed yet."""
    return make_sandbox(database, user, status=Status.STARTING)


@pytest.fixture
def awaited_row(sandbox: Sandbox) -> AwaitedRow:
    return AwaitedRow(Sandbox, sandbox.id, 1)


def observe(database: Database, sandbox_id: str) -> None:
    with database.transaction() as session:
        session.get_one(Sandbox, sandbox_id).observed_generation = 1


def run_with(waiter: CompletionWaiter, act: Callable[[], Awaitable[Result]]) -> Result:
    """Await `act` on an event loop on which the waiter runs."""

    async def run() -> Result:
        running = asyncio.create_task(waiter.run())
        try:
            return await act()
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    return asyncio.run(run())


class CountingWaiter(CompletionWaiter):
    """Counts its reads, and calls `after_read` after each, before the result is reported."""

    def __init__(
        self,
        database: Database,
        intervals: PollIntervals = NEVER,
        after_read: Callable[["CountingWaiter"], None] | None = None,
    ) -> None:
        super().__init__(database, intervals)
        self.reads = 0
        self._after_read = after_read
        self._busy = False

    async def until_idle(self, waiting: int = 1) -> None:
        """Return when `waiting` requests wait and no row is due to be read for them."""
        while self._is_due() or len(self._futures()) < waiting:  # noqa: ASYNC110 - there is no event for that
            await asyncio.sleep(0.001)

    def _is_due(self) -> bool:
        return not self.reads or self._event.is_set() or self._busy

    def _futures(self) -> list[asyncio.Future[bool]]:
        return [future for waiting in self._waiting.values() for future in waiting]

    async def _read_due(self) -> None:
        self._busy = True
        await super()._read_due()
        self._busy = False

    def _find_completed(self, rows: Collection[AwaitedRow]) -> dict[AwaitedRow, bool]:
        found = super()._find_completed(rows)
        self.reads += 1
        if self._after_read is not None:
            self._after_read(self)
        return found


def test_wait_for_a_completed_row_ends_immediately(
    database: Database, sandbox: Sandbox, awaited_row: AwaitedRow
) -> None:
    observe(database, sandbox.id)
    waiter = CompletionWaiter(database, NEVER)
    assert run_with(waiter, lambda: waiter.settle(awaited_row, LONG))


def test_commit_between_the_read_and_the_wait_is_not_missed(
    database: Database, sandbox: Sandbox, awaited_row: AwaitedRow
) -> None:
    async def wait() -> bool:
        loop = asyncio.get_running_loop()

        def after_read(waiter: CountingWaiter) -> None:
            if waiter.reads == 1:
                observe(database, sandbox.id)
                loop.call_soon_threadsafe(waiter.receive, [sandbox.id])

        waiter = CountingWaiter(database, after_read=after_read)
        running = asyncio.create_task(waiter.run())
        try:
            return await waiter.settle(awaited_row, LONG) and waiter.reads == 2
        finally:
            running.cancel()

    assert asyncio.run(wait())


def test_notification_of_another_row_causes_no_read(database: Database, awaited_row: AwaitedRow) -> None:
    waiter = CountingWaiter(database)

    async def wait() -> int:
        waiting = asyncio.create_task(waiter.settle(awaited_row, LONG))
        await waiter.until_idle()
        waiter.receive(["other", "rows"])
        await waiter.until_idle()
        waiting.cancel()
        return waiter.reads

    assert run_with(waiter, wait) == 1


@pytest.mark.parametrize("is_connected", [True, False])
def test_lost_notification_only_delays(
    database: Database, sandbox: Sandbox, awaited_row: AwaitedRow, *, is_connected: bool
) -> None:
    waiter = CountingWaiter(database, OFTEN)

    async def wait() -> bool:
        waiter.set_connected(is_connected=is_connected)
        waiting = asyncio.create_task(waiter.settle(awaited_row, LONG))
        await waiter.until_idle()
        await to_thread.run_sync(observe, database, sandbox.id)
        return await waiting

    assert run_with(waiter, wait)


def test_reconnection_causes_a_read(database: Database, sandbox: Sandbox, awaited_row: AwaitedRow) -> None:
    waiter = CountingWaiter(database)

    async def wait() -> bool:
        waiting = asyncio.create_task(waiter.settle(awaited_row, LONG))
        await waiter.until_idle()
        await to_thread.run_sync(observe, database, sandbox.id)
        waiter.set_connected(is_connected=True)
        return await waiting

    assert run_with(waiter, wait)


def test_failed_read_is_repeated_at_the_next_poll(
    database: Database, sandbox: Sandbox, awaited_row: AwaitedRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter, find = CompletionWaiter(database, OFTEN), CompletionWaiter._find_completed
    failures = iter([OperationalError("", {}, Exception())])

    def fail_once(self: CompletionWaiter, rows: Collection[AwaitedRow]) -> dict[AwaitedRow, bool]:
        for failure in failures:
            raise failure
        return find(self, rows)

    monkeypatch.setattr(CompletionWaiter, "_find_completed", fail_once)
    observe(database, sandbox.id)
    assert run_with(waiter, lambda: waiter.settle(awaited_row, LONG))


def test_wait_ends_when_its_time_is_up(database: Database, awaited_row: AwaitedRow) -> None:
    waiter = CompletionWaiter(database, NEVER)
    assert not run_with(waiter, lambda: waiter.settle(awaited_row, 0.01))
    assert waiter._waiting == {}


def test_shutdown_ends_all_waits(database: Database, awaited_row: AwaitedRow) -> None:
    waiter = CountingWaiter(database)

    async def wait() -> tuple[bool, bool]:
        waiting = asyncio.create_task(waiter.settle(awaited_row, LONG))
        await waiter.until_idle()
        waiter.close()
        return await waiting, await waiter.settle(awaited_row, LONG)

    assert run_with(waiter, wait) == (False, False)


def test_cancelled_waits_are_deregistered(database: Database, awaited_row: AwaitedRow) -> None:
    waiter = CountingWaiter(database)

    async def wait() -> None:
        waiting = asyncio.create_task(waiter.settle(awaited_row, LONG))
        await waiter.until_idle()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting

    run_with(waiter, wait)
    assert waiter._waiting == {}


@pytest.mark.parametrize(("stage", "completed"), [(Stage.READY, True), (Stage.ERROR, True), (Stage.WORKING, False)])
def test_start_task_completes_when_it_is_final(
    database: Database, user: ApiUser, *, stage: Stage, completed: bool
) -> None:
    task = make_start_task(database, user, stage=stage)
    waiter = CompletionWaiter(database, NEVER)
    assert (
        run_with(waiter, lambda: waiter.settle(AwaitedRow(StartTask, task.id), LONG if completed else 0.05))
        == completed
    )


@pytest.mark.parametrize("table", [Sandbox, StartTask])
def test_deleted_row_is_completed(database: Database, table: type[Sandbox | StartTask]) -> None:
    waiter = CompletionWaiter(database, NEVER)
    assert run_with(waiter, lambda: waiter.settle(AwaitedRow(table, "gone", 1), LONG))


def test_later_generation_is_awaited_by_its_own_request(
    database: Database, sandbox: Sandbox, awaited_row: AwaitedRow
) -> None:
    observe(database, sandbox.id)
    waiter = CompletionWaiter(database, NEVER)

    async def wait() -> tuple[bool, bool]:
        later = AwaitedRow(Sandbox, sandbox.id, 2)
        return await waiter.settle(awaited_row, LONG), await waiter.settle(later, 0.05)

    assert run_with(waiter, wait) == (True, False)


def test_thousand_waits_cost_one_query_and_no_thread(
    database: Database, sandbox: Sandbox, awaited_row: AwaitedRow, statements: list[object]
) -> None:
    waiter = CountingWaiter(database)

    async def wait() -> tuple[list[bool], int, float]:
        waiting = [asyncio.create_task(waiter.settle(awaited_row, LONG)) for _ in range(1000)]
        await waiter.until_idle(waiting=1000)
        borrowed = to_thread.current_default_thread_limiter().borrowed_tokens
        await to_thread.run_sync(observe, database, sandbox.id)
        statements.clear()
        waiter.receive([sandbox.id])
        return await asyncio.gather(*waiting), len(statements), borrowed

    assert run_with(waiter, wait) == ([True] * 1000, 1, 0)
    assert database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


@pytest.fixture
def statements(database: Database, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The queries that are sent to the database."""
    sent: list[object] = []
    fetch = database.fetch

    def record(statement: ClauseElement, values: dict[str, Any]) -> Sequence[Any]:
        sent.append(statement)
        return fetch(statement, values)

    monkeypatch.setattr(database, "fetch", record)
    return sent
