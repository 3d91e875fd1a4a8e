"""Faults of the broker and of the database."""

import sqlite3
import time

from shared.queue.jobs import queues_of
from tests.drills.chaos.faults.fault import Fault, Missed
from tests.drills.chaos.site import NODES

# The queues of jobs, as the broker names them. It has no empty list.
QUEUES = [f"aw:{queue}" for node in NODES for queue in queues_of(node)]
FLUSH_IF_QUEUED = "return redis.call('EXISTS', unpack(KEYS)) > 0 and redis.call('FLUSHALL') or false"
# How long a flush waits for a queued job, which a worker takes within milliseconds.
QUEUED_SECONDS, POLL_SECONDS = 5.0, 0.001


class BrokerRestarted(Fault):
    """A crash of the broker, and a restart with the messages that it had persisted."""

    def inject(self) -> None:
        self.site.valkey.kill()

    def heal(self) -> None:
        self.site.valkey.start()


class BrokerStalled(Fault):
    """The broker keeps its connections open and does not respond."""

    def inject(self) -> None:
        self.site.valkey.stall()

    def heal(self) -> None:
        self.site.valkey.wake()


class BrokerFlushed(Fault):
    """The loss of every message in the broker, once a job is queued: workers take most jobs at once."""

    seconds = (0.0, 0.0)

    def inject(self) -> None:
        ends = time.monotonic() + QUEUED_SECONDS
        with self.site.valkey.client() as broker:
            while not broker.eval(FLUSH_IF_QUEUED, len(QUEUES), *QUEUES):
                if time.monotonic() > ends:
                    raise Missed("no job was queued")
                time.sleep(POLL_SECONDS)


class DatabaseRestarted(Fault):
    """A clean restart of PostgreSQL; SQLite is locked by another connection for the same duration."""

    def inject(self) -> None:
        if self.site.postgres:
            self.site.postgres.stop()
        else:
            file = self.site.service.database.engine.url.database
            self._lock = sqlite3.connect(str(file), isolation_level=None, timeout=30, check_same_thread=False)
            self._lock.execute("BEGIN IMMEDIATE")

    def heal(self) -> None:
        if self.site.postgres:
            self.site.postgres.start()
        else:
            self._lock.close()


class DatabaseCrashed(DatabaseRestarted):
    """A crash of PostgreSQL, without a shutdown."""

    def inject(self) -> None:
        if self.site.postgres:
            self.site.postgres.crash()
        else:
            super().inject()
