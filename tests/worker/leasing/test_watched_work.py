"""Work in a thread of its own, and the caller that watches meanwhile."""

import threading
import time

import pytest

from tests.waiting import eventually
from worker.leasing import watched_work
from worker.leasing.watched_work import Abandoned, require_awaited, run_watched


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_work, "WATCH_SECONDS", 0.01)


class Stop(Exception):
    """What a watch raises."""


def test_work_is_done_and_watched() -> None:
    watched = threading.Event()
    run_watched(lambda: None if watched.wait(10) else pytest.fail("nobody watched"), watched.set)
    assert watched.is_set()


def test_what_the_work_raises_is_raised() -> None:
    def fail() -> None:
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        run_watched(fail, lambda: None)


def test_what_the_watch_raises_ends_the_wait() -> None:
    ended = threading.Event()

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        run_watched(lambda: (ended.wait(10), None)[1], stop)
    ended.set()


def test_abandoned_work_is_not_gone_on_with() -> None:
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
    require_awaited()  # nobody has abandoned what called it


def test_patience_comes_before_the_first_watch() -> None:
    began, watched = time.monotonic(), list[float]()

    def watch() -> None:
        watched.append(time.monotonic() - began)

    run_watched(lambda: (eventually(lambda: len(watched) > 1), None)[1], watch, patience=0.3)
    assert watched[0] >= 0.3
    assert watched[1] - watched[0] < 0.3
