"""Batched key lookup: few queries find many users, and no request depends on another."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from threading import Event
from typing import Any
from unittest.mock import Mock

import pytest

from api.request.context import MAX_BATCH, BatchedKeyLookup
from shared.db.database import Database
from shared.errors import Unauthenticated
from shared.users import api_keys
from shared.users.api_keys import AuthenticatedKey
from tests.factories import VAULT, ApiUser

Callers = BatchedKeyLookup[str, AuthenticatedKey]


class Fetches:
    """Wraps the store: counts the queries, and blocks each until `go` is set, as it is initially."""

    def __init__(self, database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self.go, self.begun = 0, Event(), Event()
        self.error: Exception | None = None
        self.go.set()
        fetch_really = database.fetch

        def fetch(statement: Any, values: dict[str, Any]) -> Any:
            self.count += 1
            self.begun.set()
            assert self.go.wait(30)
            if self.error is not None:
                raise self.error
            return fetch_really(statement, values)

        monkeypatch.setattr(database, "fetch", fetch)


@pytest.fixture
def fetches(database: Database, monkeypatch: pytest.MonkeyPatch) -> Fetches:
    return Fetches(database, monkeypatch)


@pytest.fixture
def callers(database: Database) -> Callers:
    return BatchedKeyLookup(partial(api_keys.authenticate, database, VAULT), "unknown key")


async def send(callers: Callers, *keys: str) -> list[Any]:
    return await asyncio.gather(*map(callers.find, keys), return_exceptions=True)


async def during_first_query(fetches: Fetches, first: Awaitable[Any], then: Callable[[], Awaitable[Any]]) -> Any:
    """Run `then` during the query of `first`."""
    fetches.go.clear()
    first_task = asyncio.ensure_future(first)
    await asyncio.to_thread(fetches.begun.wait, 30)
    second_task = asyncio.ensure_future(then())
    await asyncio.sleep(0)
    fetches.go.set()
    return await asyncio.gather(first_task, second_task, return_exceptions=True)


def names(found: list[Any]) -> list[str | None]:
    return [one.name if isinstance(one, AuthenticatedKey) else None for one in found]


def test_few_queries_find_the_user_of_each_key(
    callers: Callers, fetches: Fetches, user: ApiUser, other_user: ApiUser
) -> None:
    keys = [user.key, "aw_wrong", other_user.key, ""] * 20
    found = asyncio.run(send(callers, *keys))
    assert names(found) == [user.name, None, other_user.name, None] * 20
    assert all(isinstance(one, AuthenticatedKey | Unauthenticated) for one in found)
    assert fetches.count <= len(keys) // MAX_BATCH + 1


def test_key_that_arrives_during_a_query_is_in_the_next_query(
    callers: Callers, fetches: Fetches, user: ApiUser, other_user: ApiUser
) -> None:
    later = [user.key, other_user.key]
    found = asyncio.run(during_first_query(fetches, callers.find(user.key), lambda: send(callers, *later)))
    assert names([found[0], *found[1]]) == [user.name, user.name, other_user.name]
    assert fetches.count == 2


def test_failed_query_fails_its_requests_and_no_later_ones(callers: Callers, fetches: Fetches, user: ApiUser) -> None:
    async def fail_and_recover() -> tuple[list[Any], list[Any]]:
        fetches.error = OSError("gone")
        failed = await send(callers, user.key, user.key)
        fetches.error = None
        return failed, await send(callers, user.key)

    failed, found = asyncio.run(fail_and_recover())
    assert [type(one) for one in failed] == [OSError, OSError]
    assert names(found) == [user.name]


def test_request_without_a_thread_fails_and_later_ones_do_not(
    callers: Callers, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process at its limit of threads, or without memory for another one, can't start the thread of its lookups."""

    async def fail_and_recover() -> tuple[list[Any], list[Any]]:
        with monkeypatch.context() as patch:
            patch.setattr(callers._thread, "submit", Mock(side_effect=RuntimeError("can't start new thread")))
            failed = await asyncio.wait_for(send(callers, user.key), 30)
        return failed, await asyncio.wait_for(send(callers, user.key), 30)

    failed, found = asyncio.run(fail_and_recover())
    assert [type(one) for one in failed] == [RuntimeError]
    assert names(found) == [user.name]


def test_cancelled_request_does_not_cancel_the_query_of_others(
    callers: Callers, fetches: Fetches, user: ApiUser, other_user: ApiUser
) -> None:
    async def cancel_one() -> Any:
        cancelled = asyncio.ensure_future(callers.find(user.key))
        other = asyncio.ensure_future(callers.find(other_user.key))
        await asyncio.sleep(0)
        cancelled.cancel()
        return await asyncio.gather(cancelled, other, return_exceptions=True)

    _, (first, second) = asyncio.run(during_first_query(fetches, callers.find(user.key), cancel_one))
    assert isinstance(first, asyncio.CancelledError)
    assert names([second]) == [other_user.name]


def test_lookup_works_on_each_event_loop(callers: Callers, user: ApiUser) -> None:
    for _ in range(2):
        assert names(asyncio.run(send(callers, user.key))) == [user.name]
