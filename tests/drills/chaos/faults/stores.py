"""Faults of the broker and of the database."""

import sqlite3

from tests.drills.chaos.faults.fault import Fault


class BrokerRestarted(Fault):
    """It dies, and is started again with what it had written down."""

    def inflict(self) -> None:
        self.site.valkey.kill()

    def heal(self) -> None:
        self.site.valkey.start()


class BrokerStalled(Fault):
    """It holds its connections and says nothing."""

    def inflict(self) -> None:
        self.site.valkey.stall()

    def heal(self) -> None:
        self.site.valkey.wake()


class BrokerFlushed(Fault):
    """Every message is forgotten."""

    seconds = (0.0, 0.0)

    def inflict(self) -> None:
        self.site.valkey.flush()


class DatabaseRestarted(Fault):
    """PostgreSQL is stopped in order and started again; SQLite is locked by another connection for as long."""

    def inflict(self) -> None:
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
    """PostgreSQL goes down without a word."""

    def inflict(self) -> None:
        if self.site.postgres:
            self.site.postgres.crash()
        else:
            super().inflict()
