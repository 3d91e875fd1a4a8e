"""Waiting for wishes to settle: no wake-up is lost, no notice is needed, and waiting costs nothing but memory."""

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
from tests.factories import Person, make_sandbox, make_start_task

Result = TypeVar("Result")
# A look that nobody asked for would come far too late to make a test pass.
NEVER = PollIntervals(hearing=1000, blind=1000)
OFTEN = PollIntervals(hearing=0.02, blind=0.02)
LONG = 60.0


@pytest.fixture
def sandbox(database: Database, user: Person) -> Sandbox:
    """A wish that is not answered."""
    return make_sandbox(database, user, status=Status.STARTING)


@pytest.fixture
def awaited_row(sandbox: Sandbox) -> AwaitedRow:
    return AwaitedRow(Sandbox, sandbox.id, 1)


def answer(database: Database, sandbox_id: str) -> None:
    with database.transaction() as session:
        session.get_one(Sandbox, sandbox_id).observed_generation = 1


def at_work(waiter: CompletionWaiter, act: Callable[[], Awaitable[Result]]) -> Result:
    """Do something on an event loop on which the lookout runs."""

    async def run() -> Result:
        looking = asyncio.create_task(waiter.run())
        try:
            return await act()
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

    return asyncio.run(run())


class Looks(CompletionWaiter):
    """Counts its looks, and calls `meanwhile` in each: it has read, and has not said yet what it found."""

    def __init__(
        self, database: Database, intervals: PollIntervals = NEVER, meanwhile: Callable[["Looks"], None] | None = None
    ) -> None:
        super().__init__(database, intervals)
        self.looks = 0
        self._meanwhile = meanwhile
        self._busy = False

    async def at_rest(self, waiting: int = 1) -> None:
        """Return when so many wait, and nothing is left to be looked at for them."""
        while self._is_due() or len(self._futures()) < waiting:  # noqa: ASYNC110 - it has no event for that
            await asyncio.sleep(0.001)

    def _is_due(self) -> bool:
        return not self.looks or self._bell.is_set() or self._busy

    def _futures(self) -> list[asyncio.Future[bool]]:
        return [future for waiting in self._waiting.values() for future in waiting]

    async def _look(self) -> None:
        self._busy = True
        await super()._look()
        self._busy = False

    def _find_settled(self, subjects: Collection[AwaitedRow]) -> dict[AwaitedRow, bool]:
        found = super()._find_settled(subjects)
        self.looks += 1
        if self._meanwhile is not None:
            self._meanwhile(self)
        return found


def test_wait_for_what_has_settled_ends_at_once(database: Database, sandbox: Sandbox, awaited_row: AwaitedRow) -> None:
    answer(database, sandbox.id)
    waiter = CompletionWaiter(database, NEVER)
    assert at_work(waiter, lambda: waiter.settle(awaited_row, LONG))


def test_commit_between_the_look_and_the_wait_is_not_missed(
    database: Database, sandbox: Sandbox, awaited_row: AwaitedRow
) -> None:
    async def wait() -> bool:
        loop = asyncio.get_running_loop()

        def meanwhile(waiter: Looks) -> None:
            if waiter.looks == 1:
                answer(database, sandbox.id)
                loop.call_soon_threadsafe(waiter.hear, [sandbox.id])

        waiter = Looks(database, meanwhile=meanwhile)
        looking = asyncio.create_task(waiter.run())
        try:
            return await waiter.settle(awaited_row, LONG) and waiter.looks == 2
        finally:
            looking.cancel()

    assert asyncio.run(wait())


def test_notice_of_something_else_is_no_look(database: Database, awaited_row: AwaitedRow) -> None:
    waiter = Looks(database)

    async def wait() -> int:
        waiting = asyncio.create_task(waiter.settle(awaited_row, LONG))
        await waiter.at_rest()
        waiter.hear(["somebody", "else"])
        await waiter.at_rest()
        waiting.cancel()
        return waiter.looks

    assert at_work(waiter, wait) == 1


@pytest.mark.parametrize("hears", [True, False])
def test_lost_notice_only_delays(database: Database, sandbox: Sandbox, awaited_row: AwaitedRow, *, hears: bool) -> None:
    waiter = Looks(database, OFTEN)

    async def wait() -> bool:
        waiter.listen(hears=hears)
        waiting = asyncio.create_task(waiter.settle(awaited_row, LONG))
        await waiter.at_rest()
        await to_thread.run_sync(answer, database, sandbox.id)
        return await waiting

    assert at_work(waiter, wait)


def test_new_line_is_a_reason_to_look(database: Database, sandbox: Sandbox, awaited_row: AwaitedRow) -> None:
    waiter = Looks(database)

    async def wait() -> bool:
        waiting = asyncio.create_task(waiter.settle(awaited_row, LONG))
        await waiter.at_rest()
        await to_thread.run_sync(answer, database, sandbox.id)
        waiter.listen(hears=True)
        return await waiting

    assert at_work(waiter, wait)


def test_store_that_was_away_is_looked_at_again(
    database: Database, sandbox: Sandbox, awaited_row: AwaitedRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiter, find = CompletionWaiter(database, OFTEN), CompletionWaiter._find_settled
    failures = iter([OperationalError("", {}, Exception())])

    def fail_once(self: CompletionWaiter, subjects: Collection[AwaitedRow]) -> dict[AwaitedRow, bool]:
        for failure in failures:
            raise failure
        return find(self, subjects)

    monkeypatch.setattr(CompletionWaiter, "_find_settled", fail_once)
    answer(database, sandbox.id)
    assert at_work(waiter, lambda: waiter.settle(awaited_row, LONG))


def test_wait_ends_when_its_time_is_up(database: Database, awaited_row: AwaitedRow) -> None:
    waiter = CompletionWaiter(database, NEVER)
    assert not at_work(waiter, lambda: waiter.settle(awaited_row, 0.01))
    assert waiter._waiting == {}


def test_end_of_the_process_lets_everybody_go(database: Database, awaited_row: AwaitedRow) -> None:
    waiter = Looks(database)

    async def wait() -> tuple[bool, bool]:
        waiting = asyncio.create_task(waiter.settle(awaited_row, LONG))
        await waiter.at_rest()
        waiter.close()
        return await waiting, await waiter.settle(awaited_row, LONG)

    assert at_work(waiter, wait) == (False, False)


def test_callers_that_have_gone_are_forgotten(database: Database, awaited_row: AwaitedRow) -> None:
    waiter = Looks(database)

    async def wait() -> None:
        waiting = asyncio.create_task(waiter.settle(awaited_row, LONG))
        await waiter.at_rest()
        waiting.cancel()
        with suppress(asyncio.CancelledError):
            await waiting

    at_work(waiter, wait)
    assert waiter._waiting == {}


@pytest.mark.parametrize(("stage", "settled"), [(Stage.READY, True), (Stage.ERROR, True), (Stage.WORKING, False)])
def test_start_task_settles_when_it_is_final(database: Database, user: Person, *, stage: Stage, settled: bool) -> None:
    task = make_start_task(database, user, stage=stage)
    waiter = CompletionWaiter(database, NEVER)
    assert at_work(waiter, lambda: waiter.settle(AwaitedRow(StartTask, task.id), LONG if settled else 0.05)) == settled


@pytest.mark.parametrize("table", [Sandbox, StartTask])
def test_row_that_is_gone_is_settled(database: Database, table: type[Sandbox | StartTask]) -> None:
    waiter = CompletionWaiter(database, NEVER)
    assert at_work(waiter, lambda: waiter.settle(AwaitedRow(table, "gone", 1), LONG))


def test_later_wish_is_waited_for_by_who_wished_it(
    database: Database, sandbox: Sandbox, awaited_row: AwaitedRow
) -> None:
    answer(database, sandbox.id)
    waiter = CompletionWaiter(database, NEVER)

    async def wait() -> tuple[bool, bool]:
        later = AwaitedRow(Sandbox, sandbox.id, 2)
        return await waiter.settle(awaited_row, LONG), await waiter.settle(later, 0.05)

    assert at_work(waiter, wait) == (True, False)


def test_thousand_that_wait_are_one_look_and_no_thread(
    database: Database, sandbox: Sandbox, awaited_row: AwaitedRow, statements: list[object]
) -> None:
    waiter = Looks(database)

    async def wait() -> tuple[list[bool], int, float]:
        waiting = [asyncio.create_task(waiter.settle(awaited_row, LONG)) for _ in range(1000)]
        await waiter.at_rest(waiting=1000)
        borrowed = to_thread.current_default_thread_limiter().borrowed_tokens
        await to_thread.run_sync(answer, database, sandbox.id)
        statements.clear()
        waiter.hear([sandbox.id])
        return await asyncio.gather(*waiting), len(statements), borrowed

    assert at_work(waiter, wait) == ([True] * 1000, 1, 0)
    assert database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


@pytest.fixture
def statements(database: Database, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The queries that are sent to the store."""
    sent: list[object] = []
    fetch = database.fetch

    def note(statement: ClauseElement, values: dict[str, Any]) -> Sequence[Any]:
        sent.append(statement)
        return fetch(statement, values)

    monkeypatch.setattr(database, "fetch", note)
    return sent
