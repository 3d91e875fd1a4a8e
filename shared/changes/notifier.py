"""Notices: the ids of what a commit has changed, told to whoever listens. Best effort: who misses one is only late.

A notice holds ids and nothing else, separated by spaces. Nothing keeps it: one that nobody hears is gone.
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
# What waits for a broker that is stalled or away; more than that is dropped.
MAX_WAITING = 10_000
MAX_PER_ITEM = 500
TIMEOUT_SECONDS = 2.0


def server_url(broker: str) -> str:
    """The broker's URL as a client of the server itself reads it; kombu's has other words for a unix socket."""
    if broker.startswith("redis+socket://"):
        return "unix://" + broker.removeprefix("redis+socket://").partition("?")[0]
    return broker


class ChangeNotifier:
    """Sends notices from a thread of its own, so that no broker delays whoever has committed."""

    def __init__(self, broker: str) -> None:
        """Send through this broker; nothing is opened before the first notice."""
        retry = Retry(NoBackoff(), 1)  # a connection that was idle may be dead
        self._redis = Redis.from_url(
            server_url(broker), socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=retry
        )
        self._waiting: queue.Queue[str] = queue.Queue(MAX_WAITING)
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._failing = False

    def announce(self, changes: Collection[Change]) -> None:
        """Tell of these changes soon, after the commit; never waits, never raises."""
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
                self._thread = threading.Thread(target=self._run, name="notices", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            self._send({self._waiting.get(), *self._rest()})

    def _rest(self) -> Iterable[str]:
        """What has come meanwhile goes out with it."""
        for _ in range(MAX_PER_ITEM):
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
                log.warning("notices_not_sent", error=type(error).__name__)
            self._failing = True
