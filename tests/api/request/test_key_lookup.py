"""Who asks: many at a time are found with few queries, each is told apart, and none depends on another."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from threading import Event
from typing import Any

import pytest

from api.request.key_lookup import MOST, BatchedKeyLookup
from shared.db.database import Database
from shared.errors import Unauthenticated
from shared.users import api_keys
from shared.users.api_keys import AuthenticatedKey
from tests.factories import VAULT, Person


class Fetches:
    """Stands before the store: counts the queries, and lets each wait until `go`, which is set at first."""

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
def callers(database: Database) -> BatchedKeyLookup:
    return BatchedKeyLookup(partial(api_keys.authenticate, database, VAULT), "nobody's")


async def ask(callers: BatchedKeyLookup, *keys: str) -> list[Any]:
    return await asyncio.gather(*map(callers.find, keys), return_exceptions=True)


async def while_one_is_asked(fetches: Fetches, first: Awaitable[Any], then: Callable[[], Awaitable[Any]]) -> Any:
    """Do the second while the first one's query is under way."""
    fetches.go.clear()
    asking = asyncio.ensure_future(first)
    await asyncio.to_thread(fetches.begun.wait, 30)
    doing = asyncio.ensure_future(then())
    await asyncio.sleep(0)
    fetches.go.set()
    return await asyncio.gather(asking, doing, return_exceptions=True)


def names(found: list[Any]) -> list[str | None]:
    return [one.name if isinstance(one, AuthenticatedKey) else None for one in found]


def test_each_is_told_apart_by_few_queries(
    callers: BatchedKeyLookup, fetches: Fetches, user: Person, other_user: Person
) -> None:
    keys = [user.key, "aw_wrong", other_user.key, ""] * 20
    found = asyncio.run(ask(callers, *keys))
    assert names(found) == [user.name, None, other_user.name, None] * 20
    assert all(isinstance(one, AuthenticatedKey | Unauthenticated) for one in found)
    assert fetches.count <= len(keys) // MOST + 1


def test_caller_who_comes_during_a_query_is_in_the_next_one(
    callers: BatchedKeyLookup, fetches: Fetches, user: Person, other_user: Person
) -> None:
    later = [user.key, other_user.key]
    found = asyncio.run(while_one_is_asked(fetches, callers.find(user.key), lambda: ask(callers, *later)))
    assert names([found[0], *found[1]]) == [user.name, user.name, other_user.name]
    assert fetches.count == 2


def test_a_store_that_fails_is_everybodys_and_passes(callers: BatchedKeyLookup, fetches: Fetches, user: Person) -> None:
    async def fail_and_recover() -> tuple[list[Any], list[Any]]:
        fetches.error = OSError("gone")
        failed = await ask(callers, user.key, user.key)
        fetches.error = None
        return failed, await ask(callers, user.key)

    failed, found = asyncio.run(fail_and_recover())
    assert [type(one) for one in failed] == [OSError, OSError]
    assert names(found) == [user.name]


def test_caller_who_goes_ends_no_other_s_query(
    callers: BatchedKeyLookup, fetches: Fetches, user: Person, other_user: Person
) -> None:
    async def go_away() -> Any:
        going = asyncio.ensure_future(callers.find(user.key))
        staying = asyncio.ensure_future(callers.find(other_user.key))
        await asyncio.sleep(0)
        going.cancel()
        return await asyncio.gather(going, staying, return_exceptions=True)

    _, (gone, stayed) = asyncio.run(while_one_is_asked(fetches, callers.find(user.key), go_away))
    assert isinstance(gone, asyncio.CancelledError)
    assert names([stayed]) == [other_user.name]


def test_every_event_loop_has_its_own(callers: BatchedKeyLookup, user: Person) -> None:
    for _ in range(2):
        assert names(asyncio.run(ask(callers, user.key))) == [user.name]
