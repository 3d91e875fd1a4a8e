"""Callers share threads fairly."""

import asyncio
from threading import Event
from typing import Any

import pytest

from api.fair_threads import FairThreads
from api.json_text import LARGE_BYTES, SMALL_BYTES, in_thread_if_large
from shared.sql.write_slots import caller


def test_busy_caller_does_not_delay_others() -> None:
    done = asyncio.run(_crowd(FairThreads(2, "test")))
    assert "bob" in done
    assert [name for name in done if name != "bob"] == [f"alice {number}" for number in range(20) if number != 3]


async def _crowd(threads: FairThreads) -> list[str]:
    released, done = Event(), list[str]()

    def work(name: str) -> None:
        released.wait(10)
        done.append(name)

    many = [asyncio.create_task(threads.run("alice", work, f"alice {number}")) for number in range(20)]
    await asyncio.sleep(0)
    assert await asyncio.wait_for(threads.run("bob", str, 1), 5) == "1"
    assert await asyncio.wait_for(threads.run(None, str, 2), 5) == "2"
    bob = asyncio.create_task(threads.run("bob", work, "bob"))
    await asyncio.sleep(0)
    many[3].cancel()
    await asyncio.wait([many[3]])
    released.set()
    await asyncio.gather(*many, bob, return_exceptions=True)
    return done


def test_error_is_passed_on_and_the_next_work_runs() -> None:
    async def fail(threads: FairThreads) -> int:
        failing = asyncio.create_task(threads.run("alice", int, "x"))
        following = asyncio.create_task(threads.run("alice", int, "1"))
        with pytest.raises(ValueError, match="invalid literal"):
            await failing
        return await following

    assert asyncio.run(fail(FairThreads(1, "test"))) == 1


def test_work_that_gets_no_thread_blocks_none_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = FairThreads(1, "test")

    def fail_once(*_: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("can't start new thread")

    async def run() -> int:
        monkeypatch.setattr(threads._threads, "submit", fail_once)
        failing = asyncio.create_task(threads.run("alice", int, "1"))
        following = asyncio.create_task(threads.run("alice", int, "2"))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await failing
        return await asyncio.wait_for(following, 30)

    assert asyncio.run(run()) == 2


def test_large_bodies_of_one_caller_do_not_delay_others() -> None:
    released = Event()

    async def parse_for(who: str) -> Any:
        caller.set(who)
        work = (released.wait, 10) if who == "alice" else (int,)
        return await in_thread_if_large(b" " * (SMALL_BYTES + 1), *work)

    async def crowd() -> Any:
        many = [asyncio.create_task(parse_for("alice")) for _ in range(20)]
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(parse_for("bob"), 5)
        finally:
            released.set()
            await asyncio.gather(*many)

    assert asyncio.run(crowd()) == 0


def test_very_large_bodies_of_several_callers_do_not_delay_others() -> None:
    """A webhook may take half a minute, and there are two threads for the bodies of all users."""
    released = Event()

    async def parse_for(who: str, size: int, *work: Any) -> Any:
        caller.set(who)
        return await in_thread_if_large(b" " * size, *work)

    async def crowd() -> Any:
        many = [
            asyncio.create_task(parse_for(f"sender {number}", LARGE_BYTES + 1, released.wait, 10))
            for number in range(3)
        ]
        await asyncio.sleep(0)
        try:
            return await asyncio.wait_for(parse_for("bob", LARGE_BYTES, int), 5)
        finally:
            released.set()
            await asyncio.gather(*many)

    assert asyncio.run(crowd()) == 0
