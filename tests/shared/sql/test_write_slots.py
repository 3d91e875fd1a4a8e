"""Write slots: a caller gets neither all of them, nor any just after its transaction did not get a lock in time."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from threading import Event
from types import SimpleNamespace

import pytest
from psycopg.errors import LockNotAvailable
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shared.sql import write_slots
from shared.sql.write_slots import PLACEMENTS, WriteSlotRefused, WriteSlots, caller
from tests.waiting import eventually

AT_ONCE, A_WHILE = 0.0, 30.0
LOCKED = OperationalError("UPDATE", {}, LockNotAvailable())


@pytest.fixture
def slots() -> WriteSlots:
    """Four slots in total, two for each caller."""
    return WriteSlots(4)


@contextmanager
def written_for(
    slots: WriteSlots, who: str | None, seconds: float = AT_ONCE, shared: str | None = None
) -> Iterator[None]:
    token = caller.set(who)
    try:
        with slots.slot(seconds, shared):
            yield
    finally:
        caller.reset(token)


def is_admitted(slots: WriteSlots, who: str | None, shared: str | None = None) -> bool:
    try:
        with written_for(slots, who, shared=shared):
            return True
    except PoolTimeout:
        return False


def test_caller_gets_half_of_the_slots(slots: WriteSlots) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(written_for(slots, "alice"))
        assert not is_admitted(slots, "alice")
        assert is_admitted(slots, "bob")
        for who in ("bob", None):
            stack.enter_context(written_for(slots, who))
        assert not any(is_admitted(slots, who) for who in ("bob", None))
    assert is_admitted(slots, "alice")


def test_waiting_caller_gets_the_next_slot(slots: WriteSlots) -> None:
    entered = Event()

    def wait() -> None:
        with written_for(slots, "alice", A_WHILE):
            entered.set()

    with ThreadPoolExecutor(1) as pool:
        with written_for(slots, "alice"), written_for(slots, "alice"):
            waiting = pool.submit(wait)
            eventually(lambda: slots._waiting.total() == 1)
            assert not entered.is_set()
        waiting.result(A_WHILE)
    assert entered.is_set()


def test_waiting_writes_of_a_caller_are_refused_when_one_times_out(slots: WriteSlots) -> None:
    with ThreadPoolExecutor(1) as pool, written_for(slots, "alice"):
        with suppress(OperationalError), written_for(slots, "alice"):
            waiting = pool.submit(lambda: is_admitted_in_time(slots, "alice"))
            eventually(lambda: slots._waiting.total() == 1)
            raise LOCKED
        assert waiting.result(A_WHILE) is False
        assert is_admitted(slots, "bob")


def is_admitted_in_time(slots: WriteSlots, who: str, shared: str | None = None) -> bool:
    with suppress(PoolTimeout), written_for(slots, who, A_WHILE, shared):
        return True
    return False


def test_caller_is_refused_briefly_after_a_lock_timeout(slots: WriteSlots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_slots, "REJECT_SECONDS", 0.2)
    for who in ("alice", None):
        with suppress(OperationalError), written_for(slots, who):
            raise LOCKED
    assert is_admitted(slots, "bob")
    assert is_admitted(slots, None)
    assert eventually(lambda: is_admitted(slots, "alice"))


def test_other_errors_do_not_refuse_the_caller(slots: WriteSlots) -> None:
    for error in (OperationalError("UPDATE", {}, RuntimeError()), RuntimeError()):
        with suppress(OperationalError, RuntimeError), written_for(slots, "alice"):
            raise error
    assert is_admitted(slots, "alice")


def test_shared_slots_are_half_of_all_and_a_caller_gets_half_of_them(slots: WriteSlots) -> None:
    with ExitStack() as stack:
        for who in ("alice", "bob"):
            stack.enter_context(written_for(slots, who, shared=PLACEMENTS))
            assert not is_admitted(slots, who, PLACEMENTS)
        assert not any(is_admitted(slots, who, PLACEMENTS) for who in ("carol", None))
        for who in ("alice", "bob"):
            stack.enter_context(written_for(slots, who))
    assert is_admitted(slots, "carol", PLACEMENTS)


class TestManyCallers:
    @pytest.fixture(autouse=True)
    def small_limits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let two transactions wait for a caller's slots, and three for shared ones."""
        monkeypatch.setattr(write_slots, "MAX_WAITING", 2)
        monkeypatch.setattr(write_slots, "MAX_WAITING_FOR_SHARED", 3)
        monkeypatch.setattr(write_slots, "STANDSTILL_SECONDS", 0.2)

    def test_most_of_many_waiting_callers_are_refused_during_a_stall(self, slots: WriteSlots) -> None:
        with ThreadPoolExecutor(10) as pool:
            with written_for(slots, "alice"), written_for(slots, "alice"):
                waiting = [pool.submit(is_admitted_in_time, slots, "alice") for _ in range(10)]
                eventually(lambda: sum(one.done() for one in waiting) == 8)
                assert is_admitted(slots, "bob")
                with pytest.raises(WriteSlotRefused), written_for(slots, "alice", A_WHILE):
                    pass
            assert sorted(one.result(A_WHILE) for one in waiting) == [False] * 8 + [True] * 2

    def test_callers_waiting_for_shared_slots_are_counted_together(self, slots: WriteSlots) -> None:
        callers = [f"user-{number}" for number in range(10)]
        with ThreadPoolExecutor(10) as pool:
            with written_for(slots, "alice", shared=PLACEMENTS), written_for(slots, "bob", shared=PLACEMENTS):
                waiting = [pool.submit(is_admitted_in_time, slots, who, PLACEMENTS) for who in callers]
                eventually(lambda: sum(one.done() for one in waiting) == 7)
            assert sum(one.result(A_WHILE) for one in waiting) == 3

    def test_waiting_callers_are_admitted_while_slots_are_released(
        self, slots: WriteSlots, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each transaction takes less than a stall, and all of them more, by a clock that only they advance."""
        ended: list[int] = []
        clock = SimpleNamespace(monotonic=lambda: len(ended) * 0.3 * write_slots.STANDSTILL_SECONDS)
        monkeypatch.setattr(write_slots, "time", clock)

        def write(number: int) -> None:
            with written_for(slots, "alice", A_WHILE):
                time.sleep(0.005)  # the others find no slot during this time
                ended.append(number)

        with ThreadPoolExecutor(30) as pool:
            with written_for(slots, "alice"), written_for(slots, "alice"):
                written = [pool.submit(write, number) for number in range(60)]
                eventually(lambda: slots._waiting.total() == 30)
            for one in written:
                one.result(A_WHILE)
        assert sorted(ended) == list(range(60))

    def test_slots_keep_no_state_of_former_callers(self, slots: WriteSlots) -> None:
        assert is_admitted(slots, "alice", PLACEMENTS)
        assert [len(kept) for kept in (slots._writing, slots._waiting, slots._moved_at)] == [0, 0, 0]
