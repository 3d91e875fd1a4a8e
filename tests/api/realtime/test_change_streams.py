"""Change streams: no change is missed when notifications are lost, and an idle stream holds no connection."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TypeVar

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.realtime import change_streams
from api.realtime.change_streams import ChangeBatch, Streams
from api.realtime.completion_waiter import PollIntervals
from api.request.context import Context
from shared.changes import change_feed, recorder
from shared.changes.recorder import Change, Kind
from shared.db.database import Database
from tests.factories import ApiUser

Result = TypeVar("Result")
NEVER = PollIntervals(connected=1000, disconnected=1000)
OFTEN = PollIntervals(connected=0.02, disconnected=0.02)
CHANGES = "/api/v1/changes"


def append(database: Database, owner: ApiUser, *row_ids: str) -> None:
    with database.transaction() as session:
        recorder.append(session, [Change(owner.id, Kind.SANDBOX, row_id, "RUNNING") for row_id in row_ids])


def follow(streams: Streams, owner: ApiUser, after: int | None, act: Callable[["Reader"], Awaitable[Result]]) -> Result:
    """Run `act` with a reader, on the event loop of the streams."""

    async def run() -> Result:
        intervals = asyncio.create_task(streams.run())
        try:
            async with aclosing(streams.follow(owner.id, after)) as stream:
                return await act(Reader(stream))
        finally:
            intervals.cancel()
            with suppress(asyncio.CancelledError):
                await intervals

    return asyncio.run(run())


class Observed(Streams):
    """Records that a reader has found no change and waits."""

    waits = False

    async def _is_notified(self, subscriber: object, seconds: float | None = None) -> bool:
        self.waits = True
        return await super()._is_notified(subscriber)  # type: ignore[arg-type]


class Reader:
    def __init__(self, stream: AsyncGenerator[ChangeBatch | None]) -> None:
        self._stream = stream
        self._next: asyncio.Future[ChangeBatch | None] | None = None

    async def read(self) -> object:
        """Return the next item: the start position, the changed rows, or None for no change."""
        batch = await (self._next or anext(self._stream))
        self._next = None
        if batch is None:
            return None
        return batch.number if batch.entries is None else [entry.row_id for entry in batch.entries]

    async def wait(self, streams: Observed) -> None:
        """Start to read; return when there was no change."""
        self._next = asyncio.ensure_future(anext(self._stream))
        while not streams.waits:  # noqa: ASYNC110 - the stream has no event for it
            await asyncio.sleep(0.001)


def test_stream_starts_at_the_end_of_the_feed(database: Database, user: ApiUser) -> None:
    append(database, user, "old")

    async def read(reader: Reader) -> list[object]:
        begin = await reader.read()
        await asyncio.to_thread(append, database, user, "new")
        return [begin, await reader.read()]

    assert follow(Streams(database, NEVER), user, None, read) == [1, ["new"]]


def test_stream_continues_after_an_id(database: Database, user: ApiUser, other_user: ApiUser) -> None:
    append(database, user, "one")
    append(database, other_user, "theirs")
    append(database, user, "two", "three")
    assert follow(Streams(database, NEVER), user, 1, lambda reader: reader.read()) == ["two", "three"]


@pytest.mark.parametrize("after", [0, 9])
def test_stream_resets_after_an_unknown_id(database: Database, user: ApiUser, after: int) -> None:
    append(database, user, "one", "two")
    with database.transaction() as session:
        [first, _] = change_feed.read(session, user.id, 0) or ()
        session.delete(first)
    assert follow(Streams(database, NEVER), user, after, lambda reader: reader.read()) == 2


def test_notification_wakes_the_reader(database: Database, user: ApiUser, other_user: ApiUser) -> None:
    followed = Observed(database, NEVER)

    async def read(reader: Reader) -> object:
        await reader.wait(followed)
        followed.receive([other_user.id])
        await asyncio.to_thread(append, database, user, "one")
        followed.receive([user.id])
        return await reader.read()

    assert follow(followed, user, 0, read) == ["one"]


def test_commit_between_read_and_wait_is_not_missed(database: Database, user: ApiUser) -> None:
    class Racing(Streams):
        raced = False
        loop: asyncio.AbstractEventLoop

        def _read(self, owner_id: str, after: int | None) -> ChangeBatch | None:
            found = super()._read(owner_id, after)
            if not self.raced:
                self.raced = True
                append(database, user, "one")
                self.loop.call_soon_threadsafe(self.receive, [owner_id])
            return found

    followed = Racing(database, NEVER)

    async def read(reader: Reader) -> object:
        followed.loop = asyncio.get_running_loop()
        return await reader.read()

    assert follow(followed, user, 0, read) == ["one"]


def test_lost_notification_only_delays_the_change(database: Database, user: ApiUser) -> None:
    followed = Observed(database, OFTEN)

    async def read(reader: Reader) -> object:
        await reader.wait(followed)
        await asyncio.to_thread(append, database, user, "one")
        return await reader.read()

    assert follow(followed, user, 0, read) == ["one"]


def test_new_subscription_wakes_the_reader(database: Database, user: ApiUser) -> None:
    followed = Observed(database, NEVER)

    async def read(reader: Reader) -> object:
        await reader.wait(followed)
        await asyncio.to_thread(append, database, user, "one")
        followed.set_connected(is_connected=True)
        return await reader.read()

    assert follow(followed, user, 0, read) == ["one"]


def test_shutdown_ends_the_stream(database: Database, user: ApiUser) -> None:
    followed = Observed(database, NEVER)

    async def read(reader: Reader) -> bool:
        await reader.wait(followed)
        followed.close()
        with suppress(StopAsyncIteration):
            await reader.read()
            return False
        return True

    assert follow(followed, user, 0, read)
    assert followed._subscribers == {}


def test_disconnected_subscriber_is_removed(database: Database, user: ApiUser) -> None:
    followed = Observed(database, NEVER)

    async def leave(reader: Reader) -> None:
        await reader.wait(followed)
        assert reader._next is not None
        reader._next.cancel()
        with suppress(asyncio.CancelledError):
            await reader._next

    follow(followed, user, 0, leave)
    assert followed._subscribers == {}
    assert database.engine.pool.checkedout() == 0  # type: ignore[attr-defined]


def test_stream_sends_heartbeats_while_nothing_changes(
    database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_streams, "HEARTBEAT_SECONDS", 0.01)
    assert follow(Streams(database, NEVER), user, 0, lambda reader: reader.read()) is None


class TestOverHttp:
    @pytest.fixture
    def client(self, context: Context, database: Database, monkeypatch: pytest.MonkeyPatch) -> TestClient:
        """A client whose streams end after the first heartbeats, because it reads whole responses."""
        monkeypatch.setattr(change_streams, "HEARTBEAT_SECONDS", 0.01)
        monkeypatch.setattr(change_streams, "MAX_SECONDS", 0.2)
        return TestClient(create_app(replace(context, streams=Streams(database, NEVER))))

    def test_stream_begins_with_a_reset(self, client: TestClient, database: Database, user: ApiUser) -> None:
        append(database, user, "one")
        response = client.get(CHANGES, headers=user.headers)
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert [response.headers[name] for name in ("Cache-Control", "X-Accel-Buffering")] == ["no-store", "no"]
        assert response.text.startswith("event: reset\ndata: {}\nid: 1\n\n: nothing new\n\n")

    @pytest.mark.parametrize(
        ("header", "query"),
        [({"Last-Event-ID": "1"}, {}), ({}, {"last_event_id": 1}), ({"Last-Event-ID": "1"}, {"last_event_id": 0})],
    )
    def test_stream_resumes_after_the_last_event_id(
        self, client: TestClient, database: Database, user: ApiUser, header: dict[str, str], query: dict[str, int]
    ) -> None:
        append(database, user, "one", "two", "three")
        response = client.get(CHANGES, headers=user.headers | header, params=query)
        expected = "".join(
            f'event: change\ndata: {{"kind":"sandbox","id":"{row_id}","status":"RUNNING"}}\nid: {number}\n\n'
            for number, row_id in ((2, "two"), (3, "three"))
        )
        assert response.text.startswith(expected + ": nothing new")

    @pytest.mark.parametrize("wrong", ["-1", "x", str(2**63), "1.5"])
    def test_stream_rejects_an_invalid_last_event_id(self, client: TestClient, user: ApiUser, wrong: str) -> None:
        for response, where in (
            (client.get(CHANGES, headers=user.headers | {"Last-Event-ID": wrong}), ["header", "Last-Event-ID"]),
            (client.get(CHANGES, headers=user.headers, params={"last_event_id": wrong}), ["query", "last_event_id"]),
        ):
            assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, where)

    def test_stream_requires_a_key(self, client: TestClient) -> None:
        assert client.get(CHANGES).status_code == 401


def test_reader_of_all_users_is_woken_by_each_change_and_by_polls(database: Database) -> None:
    streams = Streams(database)

    async def run() -> list[bool]:
        stream = streams.follow_all(pause_seconds=0.0, max_seconds=0.05)
        quiet = await anext(stream)
        reading = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(0)
        streams.receive(["some-owner", "some-row"])
        changed = await reading
        streams.close()
        rest = [item async for item in stream]
        return [quiet, changed, *rest]

    assert asyncio.run(run()) == [False, True]
