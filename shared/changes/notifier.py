"""Notifications: the ids of the rows that a commit has changed, published to all subscribers.

Delivery is best effort: a subscriber that misses a notification reads the change later. A notification holds only ids,
separated by spaces. It is not stored: without a subscriber it is lost.
"""

import queue
import threading
from collections.abc import Collection, Iterable

import structlog
from redis import Redis, RedisError
from redis.backoff import NoBackoff
from redis.retry import Retry

from shared.changes.recorder import Change

log = structlog.get_logger()

# The prefix is that of the queues (`shared.queue.broker`).
CHANNEL = "aw:changes"
# Max queued notifications while the broker is stalled or down. Further ones are dropped.
MAX_WAITING = 10_000
MAX_PER_MESSAGE = 500
TIMEOUT_SECONDS = 2.0


def server_url(broker: str) -> str:
    """The broker's URL for a Redis client. kombu writes the URL of a unix socket differently."""
    if broker.startswith("redis+socket://"):
        return "unix://" + broker.removeprefix("redis+socket://").partition("?")[0]
    return broker


class ChangeNotifier:
    """Publishes notifications from a separate thread, so that the broker never delays a committed transaction."""

    def __init__(self, broker: str) -> None:
        """Configure the broker. No connection is opened before the first notification."""
        retry = Retry(NoBackoff(), 1)  # an idle connection may be dead
        self._redis = Redis.from_url(
            server_url(broker), socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=retry
        )
        self._waiting: queue.Queue[str] = queue.Queue(MAX_WAITING)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failing = False

    def publish(self, changes: Collection[Change]) -> None:
        """Enqueue these changes for publication, after the commit. Never waits, never raises."""
        if self._thread is None:
            self._start()
        for change in changes:
            try:
                self._waiting.put_nowait(f"{change.owner_id} {change.row_id}")
            except queue.Full:
                return

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._send({self._waiting.get(), *self._queued()})

    def _queued(self) -> Iterable[str]:
        """The changes enqueued so far, for the same message."""
        for _ in range(MAX_PER_MESSAGE):
            try:
                yield self._waiting.get_nowait()
            except queue.Empty:
                return

    def _send(self, ids: set[str]) -> None:
        try:
            self._redis.publish(CHANNEL, " ".join(ids))
            self._failing = False
        except (RedisError, OSError) as error:
            if not self._failing:
                log.warning("notifications_not_published", error=type(error).__name__)
            self._failing = True
