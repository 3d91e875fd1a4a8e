"""The filter of engine events that this process causes."""

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
    """Function that sets the clock."""
    clock = [100.0]
    monkeypatch.setattr("worker.engine.own_events.time.monotonic", lambda: clock[0])
    return lambda seconds: clock.__setitem__(0, 100.0 + seconds)


def call(own: OwnEventFilter, action: str = "pause", *, fails: bool = False) -> None:
    with suppress(LookupError), own.expect("a", action):
        if fails:
            raise LookupError


def test_each_call_matches_one_event(own: OwnEventFilter) -> None:
    call(own)
    call(own)
    assert [own.is_own("a", "pause") for _ in range(3)] == [True, True, False]


def test_own_event_may_arrive_before_its_call_returns(own: OwnEventFilter) -> None:
    with own.expect("a", "pause"):
        assert own.is_own("a", "pause")
    assert not own.is_own("a", "pause")


def test_event_of_another_container_or_action_is_not_own(own: OwnEventFilter) -> None:
    call(own)
    assert not own.is_own("b", "pause")
    assert not own.is_own("a", "unpause")
    assert own.is_own("a", "pause")


def test_failed_call_expects_no_event(own: OwnEventFilter) -> None:
    call(own, fails=True)
    assert not own.is_own("a", "pause")


def test_failed_call_keeps_the_expected_event_of_another_call(own: OwnEventFilter) -> None:
    """The first call's event may arrive after the second call, which had no effect, has failed."""
    call(own)
    call(own, fails=True)
    assert [own.is_own("a", "pause") for _ in range(2)] == [True, False]


def test_event_during_a_failing_call_is_its_own(own: OwnEventFilter) -> None:
    call(own)
    with suppress(LookupError), own.expect("a", "pause"):
        assert own.is_own("a", "pause")
        raise LookupError
    assert not own.is_own("a", "pause")


def test_call_expects_its_event_for_a_limited_time(own: OwnEventFilter, moment: Callable[[float], None]) -> None:
    call(own)
    moment(own_events.ECHO_SECONDS + 0.1)
    assert not own.is_own("a", "pause")
    assert own._calls == []


def test_slow_call_still_expects_its_event(own: OwnEventFilter, moment: Callable[[float], None]) -> None:
    with own.expect("a", "pause"):
        moment(600)
    assert own.is_own("a", "pause")
