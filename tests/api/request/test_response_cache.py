"""The response cache: bodies of the current version, limited in bytes."""

from api.request.response_cache import ENTRY_OVERHEAD_BYTES, ResponseCache


def test_body_is_found_only_under_its_version() -> None:
    cache = ResponseCache(10 * ENTRY_OVERHEAD_BYTES)
    cache.store("a", "1", b"one")
    assert (cache.find("a", "1"), cache.find("a", "2"), cache.find("b", "1")) == (b"one", None, None)
    cache.store("a", "2", b"two")
    assert (cache.find("a", "1"), cache.find("a", "2")) == (None, b"two")


def test_least_recently_used_body_is_evicted() -> None:
    cache = ResponseCache(2 * ENTRY_OVERHEAD_BYTES + 20)
    for key in "ab":
        cache.store(key, "1", b"x" * 10)
    assert cache.find("a", "1")
    cache.store("c", "1", b"x" * 10)
    assert [bool(cache.find(key, "1")) for key in "abc"] == [True, False, True]


def test_replaced_body_frees_its_bytes() -> None:
    cache = ResponseCache(2 * ENTRY_OVERHEAD_BYTES + 20)
    for version in range(100):
        cache.store("a", str(version), b"x" * 10)
        cache.store("b", str(version), b"x" * 10)
    assert cache.find("a", "99")
    assert cache.find("b", "99")


def test_body_larger_than_the_cache_is_not_cached() -> None:
    cache = ResponseCache(0)
    cache.store("a", "1", b"")
    assert cache.find("a", "1") is None


def test_body_larger_than_the_cache_evicts_no_other() -> None:
    cache = ResponseCache(ENTRY_OVERHEAD_BYTES + 20)
    cache.store("a", "1", b"one")
    cache.store("b", "1", b"x" * 21)
    assert (cache.find("a", "1"), cache.find("b", "1")) == (b"one", None)
