"""Which of the engine's words are no news."""

import pytest

from worker import own_doings
from worker.own_doings import OwnDoings


def test_event_of_a_call_is_told_once() -> None:
    own = OwnDoings()
    with own.expecting("a", "pause"):
        pass
    assert own.are_told("a", "pause")
    assert not own.are_told("a", "pause")


def test_event_may_be_quicker_than_the_calls_answer() -> None:
    own = OwnDoings()
    with own.expecting("a", "pause"):
        assert own.are_told("a", "pause")
    assert not own.are_told("a", "pause")


def test_another_container_and_another_event_are_news() -> None:
    own = OwnDoings()
    with own.expecting("a", "pause"):
        assert not own.are_told("b", "pause")
        assert not own.are_told("a", "unpause")


def test_call_that_failed_has_no_event() -> None:
    own = OwnDoings()
    with pytest.raises(RuntimeError), own.expecting("a", "pause"):
        raise RuntimeError
    assert not own.are_told("a", "pause")


def test_event_that_never_came_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_doings, "ECHO_SECONDS", -1.0)
    own = OwnDoings()
    with own.expecting("a", "pause"):
        pass
    assert not own.are_told("a", "pause")
