"""Work in its own thread, and the caller that checks whether to stop waiting."""

import threading
import time

import pytest

from tests.waiting import eventually
from worker import lease_renewer
from worker.lease_renewer import Abandoned, SharedCalls, require_awaited, run_watched


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_renewer, "WATCH_SECONDS", 0.01)


class Stop(Exception):
    """Error of the check."""


def test_work_runs_while_the_caller_checks() -> None:
    watched = threading.Event()
    run_watched(lambda: None if watched.wait(10) else pytest.fail("the check did not run"), watched.set)
    assert watched.is_set()


def test_error_of_the_work_is_raised() -> None:
    def fail() -> None:
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        run_watched(fail, lambda: None)


def test_error_of_the_check_ends_the_wait() -> None:
    ended = threading.Event()

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        run_watched(lambda: (ended.wait(10), None)[1], stop)
    ended.set()


def test_abandoned_work_stops() -> None:
    left, refused = threading.Event(), threading.Event()

    def work() -> None:
        require_awaited()
        left.wait(10)
        try:
            require_awaited()
        except Abandoned:
            refused.set()

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        run_watched(work, stop)
    left.set()
    assert refused.wait(10)
    require_awaited()  # the caller itself is not abandoned


def test_first_check_is_delayed() -> None:
    began, watched = time.monotonic(), list[float]()

    def watch() -> None:
        watched.append(time.monotonic() - began)

    run_watched(lambda: (eventually(lambda: len(watched) > 1), None)[1], watch, first_seconds=0.3)
    assert watched[0] >= 0.3
    assert watched[1] - watched[0] < 0.3


def test_running_call_is_shared_and_a_finished_one_is_not() -> None:
    over, calls = threading.Event(), SharedCalls()
    first = calls.begin("a", lambda: (over.wait(10), None)[1])
    assert calls.begin("a", lambda: pytest.fail("the call is under way")) is first
    assert calls.begin("b", over.set).result(10) is None
    first.result(10)
    assert calls.begin("a", lambda: None) is not first
