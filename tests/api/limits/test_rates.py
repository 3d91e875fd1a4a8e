"""Rate limits: how many requests pass, when the next ones do, and how much memory the table takes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.errors.limits import TooManyRequests
from api.limits import rates
from api.limits.addresses import client_address
from api.limits.rates import RateLimit


class Clock:
    """A clock that a test sets."""

    seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


def accepted(limit: RateLimit, key: str) -> bool:
    standing = limit.take(key)
    return standing is None or not standing.retry_seconds


def test_burst_of_a_minute_s_requests_is_admitted_before_the_rate_applies() -> None:
    clock = Clock()
    limit = RateLimit("login", 6, of="this address", clock=clock)
    assert [accepted(limit, "a") for _ in range(7)] == [True] * 6 + [False]
    assert accepted(limit, "b")
    clock.seconds += 10
    assert [accepted(limit, "a") for _ in range(2)] == [True, False]
    clock.seconds += 60
    assert [accepted(limit, "a") for _ in range(7)] == [True] * 6 + [False]


def test_remaining_requests_are_shown_in_the_draft_s_headers() -> None:
    clock = Clock()
    limit = RateLimit("login", 2, of="this address", clock=clock)
    first, _, third = (limit.take("a") for _ in range(3))
    assert first is not None
    assert first.headers == {"RateLimit-Policy": '"login";q=2;w=60', "RateLimit": '"login";r=1;t=30'}
    assert third is not None
    assert (third.headers["RateLimit"], third.headers["Retry-After"]) == ('"login";r=0;t=60', "30")
    clock.seconds += 30
    limit.require("a")
    with pytest.raises(TooManyRequests, match="more than 2 login requests of this address") as refused:
        limit.require("a")
    assert refused.value.headers["Retry-After"] == "30"


def test_limit_of_zero_means_unlimited() -> None:
    assert RateLimit("login", 0, of="this address").take("a") is None


@given(limit=st.integers(1, 50), pauses=st.lists(st.floats(0, 30), max_size=150))
def test_no_minute_has_more_than_twice_the_limit(limit: int, pauses: list[float]) -> None:
    clock = Clock()
    rate, times = RateLimit("login", limit, of="this address", clock=clock), []
    for pause in pauses:
        clock.seconds += pause
        if accepted(rate, "a"):
            times.append(clock.seconds)
    assert all(sum(start <= time < start + 60 for time in times) <= 2 * limit for start in times)


def test_table_has_a_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates, "MAX_KEYS", 3)
    limit = RateLimit("login", 1, of="this address", clock=Clock())
    assert [accepted(limit, key) for key in "abacad"] == [True, True, False, True, False, True]
    assert len(limit._even_at) == 3
    assert [accepted(limit, key) for key in "acdb"] == [False, False, False, True]


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("testclient", "testclient"),
        ("x" * 1000, "x" * 64),
    ],
)
def test_ipv6_clients_count_by_network(address: str, group: str) -> None:
    assert client_address({"type": "http", "client": (address, 1)}) == group


def test_request_without_an_address_counts_for_the_empty_address() -> None:
    assert client_address({"type": "http"}) == ""
