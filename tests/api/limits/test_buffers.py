"""The limit on the bytes that websockets of one user keep in memory."""

import asyncio

import pytest

from api.errors.limits import TooManyRequests
from api.limits.buffers import SMALL_BYTES, BufferLimit

LIMIT = 10 * SMALL_BYTES


def test_websocket_that_grows_beyond_the_limit_is_ended() -> None:
    limit = BufferLimit(LIMIT)
    with limit.share("alice") as first, limit.share("alice") as second, limit.share("bob") as other:
        first.note("a", LIMIT - SMALL_BYTES)
        second.note("a", SMALL_BYTES)
        other.note("a", LIMIT)
        assert not any(share.is_exceeded for share in (first, second, other))
        second.note("b", 1)
        assert [share.is_exceeded for share in (first, second, other)] == [False, True, False]
    assert not limit.held


def test_closed_websocket_counts_nothing() -> None:
    limit = BufferLimit(LIMIT)
    with limit.share("alice") as share:
        share.note("a", 1)
    share.note("a", LIMIT)
    assert not limit.held


def test_small_websocket_is_not_ended_for_a_large_one() -> None:
    limit = BufferLimit(LIMIT)
    with limit.share("alice") as large, limit.share("alice") as small:
        large.note("a", LIMIT)
        small.note("a", SMALL_BYTES)
        assert not small.is_exceeded
        large.note("a", LIMIT - 1)
        assert not large.is_exceeded


def test_message_counts_while_it_is_sent() -> None:
    limit = BufferLimit(LIMIT)
    with limit.share("alice") as share:
        with share.hold("a", "x" * 1000):
            assert limit.held["alice"] >= 2000
        assert limit.held["alice"] == 0


def test_work_ends_with_the_limit() -> None:
    async def run() -> None:
        limit = BufferLimit(LIMIT)
        with limit.share("alice") as share:
            assert await share.run(asyncio.sleep(0, "done")) == "done"
            work = asyncio.create_task(share.run(asyncio.Event().wait()))
            await asyncio.sleep(0)
            share.note("a", LIMIT + 1)
            with pytest.raises(TooManyRequests, match="unread bytes"):
                await work

    asyncio.run(run())
