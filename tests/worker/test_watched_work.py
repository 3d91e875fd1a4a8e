"""Work in a thread of its own, and the caller that watches meanwhile."""

import threading

import pytest

from worker import watched_work
from worker.watched_work import carry_out


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_work, "WATCH_SECONDS", 0.01)


class Stop(Exception):
    """What a watch raises."""


def test_work_is_done_and_watched() -> None:
    watched = threading.Event()
    carry_out(lambda: None if watched.wait(10) else pytest.fail("nobody watched"), watched.set)
    assert watched.is_set()


def test_what_the_work_raises_is_raised() -> None:
    def fail() -> None:
        raise KeyError("why")

    with pytest.raises(KeyError, match="why"):
        carry_out(fail, lambda: None)


def test_what_the_watch_raises_ends_the_wait() -> None:
    ended = threading.Event()

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        carry_out(lambda: (ended.wait(10), None)[1], stop)
    ended.set()
