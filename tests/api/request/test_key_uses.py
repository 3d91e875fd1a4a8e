"""Keys' last uses: a rush of requests with one key waits for no row, and writes one."""

import asyncio
from threading import Event

import pytest
from sqlmodel import select

from api.request.key_lookup import KeyUseRecorder
from shared.db.database import Database
from shared.models import ApiKey
from shared.users import api_keys
from tests.factories import Person

RUSH = 100


class Writes:
    """Stands before the store: counts what is written, and lets each wait until `go`."""

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


def key_of(database: Database, user: Person) -> ApiKey:
    with database.reading() as session:
        return session.exec(select(ApiKey).where(ApiKey.user_id == user.id)).one()


async def rush(uses: KeyUseRecorder, writes: Writes, key_id: str) -> None:
    """Many ask while the first one's use is being written."""
    first = asyncio.ensure_future(uses.note(key_id))
    await asyncio.to_thread(writes.begun.wait, 30)
    async with asyncio.timeout(30):
        await asyncio.gather(*(uses.note(key_id) for _ in range(RUSH)))
    assert not first.done()
    writes.go.set()
    await first


def test_key_use_is_written_once_for_concurrent_requests(database: Database, user: Person, writes: Writes) -> None:
    key = key_of(database, user)
    asyncio.run(rush(KeyUseRecorder(database), writes, key.id))
    assert writes.keys == [key.id]
    assert key_of(database, user).last_used_at is not None


def test_each_key_is_written(database: Database, user: Person, other_user: Person, writes: Writes) -> None:
    async def both() -> None:
        await rush(uses, writes, ids[0])
        await uses.note(ids[1])

    uses, ids = KeyUseRecorder(database), [key_of(database, one).id for one in (user, other_user)]
    asyncio.run(both())
    assert writes.keys == ids


def test_the_next_one_writes_what_could_not_be_written(database: Database, user: Person, writes: Writes) -> None:
    async def fail_and_repeat() -> None:
        with pytest.raises(BrokenPipeError):
            await rush(uses, writes, key.id)
        writes.error = None
        await uses.note(key.id)

    uses, key = KeyUseRecorder(database), key_of(database, user)
    writes.error = BrokenPipeError()
    asyncio.run(fail_and_repeat())
    assert writes.keys == [key.id] * 2
    assert key_of(database, user).last_used_at is not None
