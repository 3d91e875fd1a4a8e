"""Slots to write: none of all of them, and none where a caller's transaction has just waited in vain for a lock."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from threading import Event

import pytest
from psycopg.errors import LockNotAvailable
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shared import write_slots
from shared.write_slots import WriteSlots, caller
from tests.waiting import eventually

AT_ONCE, A_WHILE = 0.0, 30.0
LOCKED = OperationalError("UPDATE", {}, LockNotAvailable())


@pytest.fixture
def slots() -> WriteSlots:
    """Four in all, two for each caller."""
    return WriteSlots(4)


@contextmanager
def written_for(slots: WriteSlots, who: str | None, seconds: float = AT_ONCE) -> Iterator[None]:
    token = caller.set(who)
    try:
        with slots.slot(seconds):
            yield
    finally:
        caller.reset(token)


def is_admitted(slots: WriteSlots, who: str | None) -> bool:
    try:
        with written_for(slots, who):
            return True
    except PoolTimeout:
        return False


def test_a_caller_gets_half_of_them(slots: WriteSlots) -> None:
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(written_for(slots, "alice"))
        assert not is_admitted(slots, "alice")
        assert is_admitted(slots, "bob")
        for who in ("bob", None):
            stack.enter_context(written_for(slots, who))
        assert not any(is_admitted(slots, who) for who in ("bob", None))
    assert is_admitted(slots, "alice")


def test_one_who_waits_gets_the_next_one(slots: WriteSlots) -> None:
    entered = Event()

    def wait() -> None:
        with written_for(slots, "alice", A_WHILE):
            entered.set()

    with ThreadPoolExecutor(1) as pool:
        with written_for(slots, "alice"), written_for(slots, "alice"):
            waiting = pool.submit(wait)
            assert not entered.is_set()
        waiting.result(A_WHILE)
    assert entered.is_set()


def test_those_who_wait_are_refused_with_the_one_that_has_waited_in_vain(slots: WriteSlots) -> None:
    with ThreadPoolExecutor(1) as pool, written_for(slots, "alice"):
        with suppress(OperationalError), written_for(slots, "alice"):
            waiting = pool.submit(lambda: is_admitted_in_time(slots, "alice"))
            raise LOCKED
        assert waiting.result(A_WHILE) is False
        assert is_admitted(slots, "bob")


def is_admitted_in_time(slots: WriteSlots, who: str) -> bool:
    with suppress(PoolTimeout), written_for(slots, who, A_WHILE):
        return True
    return False


def test_a_caller_is_refused_for_a_moment(slots: WriteSlots, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_slots, "REFUSE_SECONDS", 0.2)
    for who in ("alice", None):
        with suppress(OperationalError), written_for(slots, who):
            raise LOCKED
    assert is_admitted(slots, "bob")
    assert is_admitted(slots, None)
    assert eventually(lambda: is_admitted(slots, "alice"))


def test_other_errors_refuse_nobody(slots: WriteSlots) -> None:
    for error in (OperationalError("UPDATE", {}, RuntimeError()), RuntimeError()):
        with suppress(OperationalError, RuntimeError), written_for(slots, "alice"):
            raise error
    assert is_admitted(slots, "alice")
