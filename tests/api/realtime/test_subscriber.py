"""Notifications from a commit to the listeners, through a real broker that is stalled, killed and flushed."""

import asyncio
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from api.realtime.subscriber import subscribe
from shared.changes import recorder as change_recorder
from shared.changes.notifier import MAX_WAITING, ChangeNotifier, server_url
from shared.changes.recorder import Change, Kind
from shared.db.database import Database
from shared.models import Sandbox
from tests.factories import ApiUser, make_sandbox
from tests.services.valkey import Valkey
from tests.waiting import eventually


class RecordingListener:
    """Listens on an event loop in a dedicated thread."""

    def __init__(self, broker: str) -> None:
        self.received: list[str] = []
        self.connected = False
        self.subscriptions = self.losses = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=asyncio.run, args=[self._run(broker)])
        self._thread.start()

    def receive(self, ids: Collection[str]) -> None:
        self.received += ids

    def set_connected(self, *, is_connected: bool) -> None:
        self.subscriptions += is_connected
        self.losses += not is_connected
        self.connected = is_connected

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
def subscriber(valkey: Valkey) -> Iterator[RecordingListener]:
    subscriber = RecordingListener(valkey.url)
    try:
        eventually(lambda: subscriber.connected)
        yield subscriber
    finally:
        valkey.wake()
        subscriber.stop()


@pytest.fixture
def notifier(valkey: Valkey) -> ChangeNotifier:
    return ChangeNotifier(valkey.url)


CHANGE = Change("owner", Kind.SANDBOX, "row", None)


def test_notification_has_owner_and_row(subscriber: RecordingListener, notifier: ChangeNotifier) -> None:
    notifier.publish([CHANGE, Change("owner", Kind.SANDBOX, "other", None)])
    eventually(lambda: {"owner", "row", "other"} <= set(subscriber.received))
    assert set(subscriber.received) == {"owner", "row", "other"}


def test_commit_publishes_and_rollback_does_not(database_url: str, user: ApiUser, database: Database) -> None:
    sandbox = make_sandbox(database, user)
    published: list[Change] = []
    store = Database(database_url, publish=published.extend)
    with suppress(ZeroDivisionError), store.transaction() as session:
        change_recorder.record_change(session, session.get_one(Sandbox, sandbox.id))
        raise ZeroDivisionError
    assert published == []
    with store.transaction() as session, suppress(ZeroDivisionError), change_recorder.savepoint(session):
        change_recorder.record_change(session, session.get_one(Sandbox, sandbox.id))
        raise ZeroDivisionError
    assert published == []
    with store.transaction() as session:
        for _ in range(2):
            change_recorder.record_change(session, session.get_one(Sandbox, sandbox.id))
        assert published == []
    assert published == [Change(user.id, Kind.SANDBOX, sandbox.id, "RUNNING")]
    store.close()


def test_restarted_broker_is_resubscribed(
    subscriber: RecordingListener, valkey: Valkey, notifier: ChangeNotifier
) -> None:
    notifier.publish([CHANGE])
    eventually(lambda: subscriber.received)
    valkey.kill()
    eventually(lambda: not subscriber.connected)
    notifier.publish([Change("owner", Kind.SANDBOX, "lost", None)])
    valkey.start()
    eventually(lambda: subscriber.connected and subscriber.subscriptions == 2)
    receive_notification(notifier, subscriber)


def test_stalled_broker_is_detected(subscriber: RecordingListener, valkey: Valkey, notifier: ChangeNotifier) -> None:
    valkey.stall()
    eventually(lambda: not subscriber.connected)
    valkey.wake()
    eventually(lambda: subscriber.connected)
    receive_notification(notifier, subscriber)


def test_each_outage_is_logged_once(subscriber: RecordingListener, valkey: Valkey) -> None:
    with capture_logs() as logs:
        for outage in (1, 2):
            valkey.kill()
            eventually(lambda: not subscriber.connected)
            subscriber.losses = 0
            eventually(lambda: subscriber.losses > 1)
            assert [entry["event"] for entry in logs] == ["subscription_lost"] * outage
            valkey.start()
            eventually(lambda: subscriber.connected)


def test_flush_preserves_the_subscription(
    subscriber: RecordingListener, valkey: Valkey, notifier: ChangeNotifier
) -> None:
    valkey.flush()
    receive_notification(notifier, subscriber)
    assert subscriber.subscriptions == 1


def test_stalled_broker_does_not_delay_commits(valkey: Valkey) -> None:
    notifier = ChangeNotifier(valkey.url)
    valkey.stall()
    with ThreadPoolExecutor(1) as pool:
        publishing = pool.submit(publish_many, notifier, 2 * MAX_WAITING)
        try:
            publishing.result(30)
            assert 0 < notifier._waiting.qsize() <= MAX_WAITING
        finally:
            valkey.wake()


@pytest.mark.parametrize(
    ("broker", "url"),
    [
        ("redis+socket:///run/a.sock", "unix:///run/a.sock"),
        ("redis+socket:///run/a.sock?virtual_host=3", "unix:///run/a.sock"),
        ("redis://:secret@host:6379/2", "redis://:secret@host:6379/2"),
    ],
)
def test_server_url_is_derived_from_the_broker_url(broker: str, url: str) -> None:
    assert server_url(broker) == url


def publish_many(notifier: ChangeNotifier, count: int) -> None:
    for number in range(count):
        notifier.publish([Change("owner", Kind.SANDBOX, str(number), None)])


def receive_notification(notifier: ChangeNotifier, subscriber: RecordingListener) -> None:
    """Publish until the subscriber receives a notification: the first ones may be lost with an old connection."""

    def is_received() -> bool:
        notifier.publish([Change("owner", Kind.SANDBOX, "repeated", None)])
        return "repeated" in subscriber.received

    eventually(is_received)
