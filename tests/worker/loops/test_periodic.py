"""Periodic tasks continue after errors until they are stopped."""

import threading

from tests.waiting import eventually
from worker.loops.periodic import PeriodicTask


def test_task_begins_immediately_and_continues_after_an_error() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(len(calls))
        raise RuntimeError("the secret value")

    task = PeriodicTask("failing", 0.001, fail)
    assert calls == []
    task.start()
    eventually(lambda: len(calls) > 3)
    task.stop()


def test_stop_ends_a_pause() -> None:
    calls: list[int] = []
    task = PeriodicTask("pausing", 3600, lambda: calls.append(1))
    task.start()
    eventually(lambda: calls)
    task.stop()
    assert not task._thread.is_alive()
    assert calls == [1]


def test_wake_ends_a_pause() -> None:
    calls: list[int] = []
    task = PeriodicTask("pausing", 3600, lambda: calls.append(1))
    task.start()
    for times in (1, 2, 3):
        eventually(lambda: len(calls) == times)  # noqa: B023 - asked in this round only
        task.wake()
    eventually(lambda: len(calls) == 4)
    task.stop()


def test_stop_waits_for_a_call_in_progress() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(30)
        done.set()

    task = PeriodicTask("working", 0.001, work)
    task.start()
    assert begun.wait(30)
    threading.Timer(0.05, go_on.set).start()
    task.stop(30)
    assert done.is_set()
    assert not task._thread.is_alive()


def test_stop_waits_for_a_limited_time() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(30)

    task = PeriodicTask("hanging", 0.001, hang)
    task.start()
    assert begun.wait(30)
    task.stop(0.01)
    assert task._thread.is_alive()
    go_on.set()
    task._thread.join(30)
