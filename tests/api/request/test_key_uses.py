"""Last use of keys: of concurrent requests with one key, one writes the use, and the others do not wait for it."""

import asyncio
from threading import Event

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from api.request.context import KeyUseRecorder
from shared.db.database import Database, StoreError
from shared.models import ApiKey
from shared.users import api_keys
from tests.factories import ApiUser

CONCURRENT = 100


class Writes:
    """Wraps the store: records the writes, and blocks each until `go` is set."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.begun, self.go = Event(), Event()
        self.error: Exception | None = None
        self._record = api_keys.record_use

    def record(self, database: Database, key_id: str) -> None:
        self.keys.append(key_id)
        self.begun.set()
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        self._record(database, key_id)


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    writes = Writes()
    monkeypatch.setattr(api_keys, "record_use", writes.record)
    return writes


def key_of(database: Database, user: ApiUser) -> ApiKey:
    with database.reading() as session:
        return session.exec(select(ApiKey).where(ApiKey.user_id == user.id)).one()


async def use_concurrently(recorder: KeyUseRecorder, writes: Writes, key_id: str) -> None:
    """Make concurrent requests while the first write is under way."""
    first = asyncio.ensure_future(recorder.note(key_id))
    await asyncio.to_thread(writes.begun.wait, 30)
    async with asyncio.timeout(30):
        await asyncio.gather(*(recorder.note(key_id) for _ in range(CONCURRENT)))
    assert not first.done()
    writes.go.set()
    await first


def test_concurrent_requests_write_the_use_of_a_key_once(database: Database, user: ApiUser, writes: Writes) -> None:
    key = key_of(database, user)
    asyncio.run(use_concurrently(KeyUseRecorder(database), writes, key.id))
    assert writes.keys == [key.id]
    assert key_of(database, user).last_used_at is not None


def test_use_of_each_key_is_written(database: Database, user: ApiUser, other_user: ApiUser, writes: Writes) -> None:
    async def both() -> None:
        await use_concurrently(recorder, writes, ids[0])
        await recorder.note(ids[1])

    recorder, ids = KeyUseRecorder(database), [key_of(database, one).id for one in (user, other_user)]
    asyncio.run(both())
    assert writes.keys == ids


def test_failed_write_is_repeated_by_the_next_request(database: Database, user: ApiUser, writes: Writes) -> None:
    async def fail_and_repeat() -> None:
        await use_concurrently(recorder, writes, key.id)
        writes.error = None
        await recorder.note(key.id)

    recorder, key = KeyUseRecorder(database), key_of(database, user)
    writes.error = StoreError("database or disk is full")
    asyncio.run(fail_and_repeat())
    assert writes.keys == [key.id] * 2
    assert key_of(database, user).last_used_at is not None


def test_reads_succeed_while_writes_fail(client: TestClient, database: Database, user: ApiUser, writes: Writes) -> None:
    writes.error = StoreError("database or disk is full")
    writes.go.set()
    for path in ("/api/v1/sandboxes/search", "/api/keys", "/api/v1/sandboxes/search"):
        assert client.get(path, headers=user.headers).status_code == 200
    assert (len(writes.keys), key_of(database, user).last_used_at) == (3, None)
