"""What is done over and over goes on whatever happens, until it is told to stop."""

import threading

from tests.waiting import eventually
from worker.loops.periodic import PeriodicTask


def test_begins_at_once_and_goes_on_after_an_error() -> None:
    calls: list[int] = []

    def fail() -> None:
        calls.append(len(calls))
        raise RuntimeError("the secret value")

    routine = PeriodicTask("failing", 0.001, fail)
    assert calls == []
    routine.start()
    eventually(lambda: len(calls) > 3)
    routine.stop()


def test_stops_in_the_middle_of_a_pause() -> None:
    calls: list[int] = []
    routine = PeriodicTask("pausing", 3600, lambda: calls.append(1))
    routine.start()
    eventually(lambda: calls)
    routine.stop()
    assert not routine._thread.is_alive()
    assert calls == [1]


def test_stop_waits_for_a_call_that_is_under_way() -> None:
    begun, go_on, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(30)
        done.set()

    routine = PeriodicTask("working", 0.001, work)
    routine.start()
    assert begun.wait(30)
    threading.Timer(0.05, go_on.set).start()
    routine.stop(30)
    assert done.is_set()
    assert not routine._thread.is_alive()


def test_stop_does_not_wait_for_ever() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(30)

    routine = PeriodicTask("hanging", 0.001, hang)
    routine.start()
    assert begun.wait(30)
    routine.stop(0.01)
    assert routine._thread.is_alive()
    go_on.set()
    routine._thread.join(30)
