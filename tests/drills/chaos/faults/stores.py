"""Faults of the broker and of the database."""

import sqlite3

from tests.drills.chaos.faults.fault import Fault


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
    """The loss of every message in the broker."""

    seconds = (0.0, 0.0)

    def inject(self) -> None:
        self.site.valkey.flush()


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
