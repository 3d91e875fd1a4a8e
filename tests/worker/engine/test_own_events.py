"""Which of the engine's words are of what we did ourselves."""

from collections.abc import Callable
from contextlib import suppress

import pytest

from worker.engine import own_events
from worker.engine.own_events import OwnEventFilter


@pytest.fixture
def own() -> OwnEventFilter:
    return OwnEventFilter()


@pytest.fixture
def moment(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the clock."""
    clock = [100.0]
    monkeypatch.setattr("worker.engine.own_events.time.monotonic", lambda: clock[0])
    return lambda seconds: clock.__setitem__(0, 100.0 + seconds)


def call(own: OwnEventFilter, action: str = "pause", *, fails: bool = False) -> None:
    with suppress(LookupError), own.expecting("a", action):
        if fails:
            raise LookupError


def test_each_is_told_once(own: OwnEventFilter) -> None:
    call(own)
    call(own)
    assert [own.are_told("a", "pause") for _ in range(3)] == [True, True, False]


def test_own_event_may_come_before_its_call_is_over(own: OwnEventFilter) -> None:
    with own.expecting("a", "pause"):
        assert own.are_told("a", "pause")
    assert not own.are_told("a", "pause")


def test_event_of_another_container_or_action_is_news(own: OwnEventFilter) -> None:
    call(own)
    assert not own.are_told("b", "pause")
    assert not own.are_told("a", "unpause")
    assert own.are_told("a", "pause")


def test_call_that_fails_is_not_expected(own: OwnEventFilter) -> None:
    call(own, fails=True)
    assert not own.are_told("a", "pause")


def test_call_that_fails_leaves_another_expected(own: OwnEventFilter) -> None:
    """The first one's event may come when the second, which found all done, is over."""
    call(own)
    call(own, fails=True)
    assert [own.are_told("a", "pause") for _ in range(2)] == [True, False]


def test_event_that_comes_during_a_call_that_fails_is_our_own(own: OwnEventFilter) -> None:
    call(own)
    with suppress(LookupError), own.expecting("a", "pause"):
        assert own.are_told("a", "pause")
        raise LookupError
    assert not own.are_told("a", "pause")


def test_nothing_is_waited_for_longer_than_an_echo(own: OwnEventFilter, moment: Callable[[float], None]) -> None:
    call(own)
    moment(own_events.ECHO_SECONDS + 0.1)
    assert not own.are_told("a", "pause")
    assert own._calls == []


def test_a_call_may_take_its_time(own: OwnEventFilter, moment: Callable[[float], None]) -> None:
    with own.expecting("a", "pause"):
        moment(600)
    assert own.are_told("a", "pause")
