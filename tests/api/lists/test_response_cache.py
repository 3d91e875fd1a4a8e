"""The response cache: responses of the current version, limited in bytes."""

from fastapi import Response

from api.lists import OVERHEAD_BYTES, CachedResponse, ResponseCache

TEN = b"x" * 10


def response(version: str = "1", body: bytes = TEN) -> CachedResponse:
    return CachedResponse(version, '"tag"', Response(body))


def test_response_is_found_only_under_its_version() -> None:
    cache, first, second = ResponseCache(10 * OVERHEAD_BYTES), response("1", b"one"), response("2", b"two")
    cache.store("a", first)
    assert (cache.find("a", "1"), cache.find("a", "2"), cache.find("b", "1")) == (first, None, None)
    cache.store("a", second)
    assert (cache.find("a", "1"), cache.find("a", "2")) == (None, second)


def test_least_recently_used_response_is_evicted() -> None:
    cache = ResponseCache(2 * OVERHEAD_BYTES + 20)
    for key in "ab":
        cache.store(key, response())
    assert cache.find("a", "1")
    cache.store("c", response())
    assert [bool(cache.find(key, "1")) for key in "abc"] == [True, False, True]


def test_replaced_response_frees_its_bytes() -> None:
    cache = ResponseCache(2 * OVERHEAD_BYTES + 20)
    for version in range(100):
        cache.store("a", response(str(version)))
        cache.store("b", response(str(version)))
    assert cache.find("a", "99")
    assert cache.find("b", "99")


def test_response_larger_than_the_cache_is_not_cached() -> None:
    cache = ResponseCache(0)
    cache.store("a", response(body=b""))
    assert cache.find("a", "1") is None


def test_response_larger_than_the_cache_evicts_no_other() -> None:
    cache, small = ResponseCache(OVERHEAD_BYTES + 20), response()
    cache.store("a", small)
    cache.store("b", response(body=b"x" * 21))
    assert (cache.find("a", "1"), cache.find("b", "1")) == (small, None)
