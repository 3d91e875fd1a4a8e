"""Notices on their way from a commit to those who listen, through a real broker that is stalled, killed and flushed."""

import asyncio
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress

import pytest

from api.realtime.subscriber import subscribe
from shared.changes import recorder as change_recorder
from shared.changes.notifier import MAX_WAITING, ChangeNotifier, server_url
from shared.changes.recorder import Change, Kind
from shared.db.database import Database
from shared.models import Sandbox
from tests.factories import Person, make_sandbox
from tests.services.valkey import Valkey
from tests.waiting import eventually


class Ear:
    """Listens on a loop in a thread of its own."""

    def __init__(self, broker: str) -> None:
        self.heard: list[str] = []
        self.hears = False
        self.lines = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._run(broker)])
        self._thread.start()

    def hear(self, ids: Collection[str]) -> None:
        self.heard += ids

    def listen(self, *, hears: bool) -> None:
        self.lines += hears
        self.hears = hears

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    async def _run(self, broker: str) -> None:
        task = asyncio.create_task(subscribe(broker, self))
        await asyncio.to_thread(self._stopped.wait)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def subscriber(valkey: Valkey) -> Iterator[Ear]:
    subscriber = Ear(valkey.url)
    try:
        eventually(lambda: subscriber.hears)
        yield subscriber
    finally:
        valkey.wake()
        subscriber.stop()


@pytest.fixture
def announcer(valkey: Valkey) -> ChangeNotifier:
    return ChangeNotifier(valkey.url)


CHANGE = Change("owner", Kind.SANDBOX, "row", None)


def test_owner_and_row_are_told(subscriber: Ear, announcer: ChangeNotifier) -> None:
    announcer.announce([CHANGE, Change("owner", Kind.SANDBOX, "other", None)])
    eventually(lambda: {"owner", "row", "other"} <= set(subscriber.heard))
    assert set(subscriber.heard) == {"owner", "row", "other"}


def test_commit_tells_and_rollback_does_not(database_url: str, user: Person, database: Database) -> None:
    sandbox = make_sandbox(database, user)
    told: list[Change] = []
    store = Database(database_url, announce=told.extend)
    with suppress(ZeroDivisionError), store.transaction() as session:
        change_recorder.record_change(session, session.get_one(Sandbox, sandbox.id))
        raise ZeroDivisionError
    assert told == []
    with store.transaction() as session, suppress(ZeroDivisionError), change_recorder.savepoint(session):
        change_recorder.record_change(session, session.get_one(Sandbox, sandbox.id))
        raise ZeroDivisionError
    assert told == []
    with store.transaction() as session:
        for _ in range(2):
            change_recorder.record_change(session, session.get_one(Sandbox, sandbox.id))
        assert told == []
    assert told == [Change(user.id, Kind.SANDBOX, sandbox.id, "RUNNING")]
    store.close()


def test_broker_that_died_is_subscribed_to_again(subscriber: Ear, valkey: Valkey, announcer: ChangeNotifier) -> None:
    announcer.announce([CHANGE])
    eventually(lambda: subscriber.heard)
    valkey.kill()
    eventually(lambda: not subscriber.hears)
    announcer.announce([Change("owner", Kind.SANDBOX, "lost", None)])
    valkey.start()
    eventually(lambda: subscriber.hears and subscriber.lines == 2)
    told_again(announcer, subscriber)


def test_broker_that_stalls_is_known_to_be_deaf(subscriber: Ear, valkey: Valkey, announcer: ChangeNotifier) -> None:
    valkey.stall()
    eventually(lambda: not subscriber.hears)
    valkey.wake()
    eventually(lambda: subscriber.hears)
    told_again(announcer, subscriber)


def test_flush_takes_nothing_away(subscriber: Ear, valkey: Valkey, announcer: ChangeNotifier) -> None:
    valkey.flush()
    told_again(announcer, subscriber)
    assert subscriber.lines == 1


def test_commits_are_not_delayed_by_a_broker_that_stalls(valkey: Valkey) -> None:
    announcer = ChangeNotifier(valkey.url)
    valkey.stall()
    for number in range(2 * MAX_WAITING):
        announcer.announce([Change("owner", Kind.SANDBOX, str(number), None)])
    assert 0 < announcer._waiting.qsize() <= MAX_WAITING


@pytest.mark.parametrize(
    ("broker", "url"),
    [
        ("redis+socket:///run/a.sock", "unix:///run/a.sock"),
        ("redis+socket:///run/a.sock?virtual_host=3", "unix:///run/a.sock"),
        ("redis://:secret@host:6379/2", "redis://:secret@host:6379/2"),
    ],
)
def test_url_of_the_server(broker: str, url: str) -> None:
    assert server_url(broker) == url


def told_again(announcer: ChangeNotifier, subscriber: Ear) -> None:
    """A notice may still be lost with the line that it is sent on; the next ones are not."""

    def told() -> bool:
        announcer.announce([Change("owner", Kind.SANDBOX, "again", None)])
        return "again" in subscriber.heard

    eventually(told)
