"""A process serves no database whose restore is not finished, even if the database was down at the process's start."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from shared.db import unfinished_restore
from shared.db.database import Database, Session
from tests.waiting import eventually


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> "Queue[tuple[int, int]]":
    """The signals that this process would get."""
    sent: Queue[tuple[int, int]] = Queue()
    monkeypatch.setattr(unfinished_restore, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(unfinished_restore, "os", SimpleNamespace(getpid=os.getpid, kill=lambda *to: sent.put(to)))
    return sent


class UnavailableAtFirst:
    """A database that responds from the third read on."""

    def __init__(self, database: Database) -> None:
        self.database, self.reads = database, 0

    @contextmanager
    def reading(self) -> Iterator[Session]:
        self.reads += 1
        if self.reads < 3:
            raise OperationalError("SELECT", {}, Exception("connection refused"))
        with self.database.reading() as session:
            yield session


def test_process_ends_when_the_database_is_back_unfinished(
    database: Database, signals: "Queue[tuple[int, int]]"
) -> None:
    url = database.engine.url.render_as_string(hide_password=False)
    unfinished_restore.mark(url, "digest")
    try:
        down: Any = UnavailableAtFirst(database)
        unfinished_restore.require_finished(down)
        assert signals.get(timeout=10) == (os.getpid(), signal.SIGTERM)
    finally:
        with database.transaction() as session:
            unfinished_restore.clear(session)


def test_process_stays_when_the_database_is_back(database: Database, signals: "Queue[tuple[int, int]]") -> None:
    down: Any = UnavailableAtFirst(database)
    unfinished_restore.require_finished(down)
    eventually(lambda: "unfinished-restore" not in [thread.name for thread in threading.enumerate()])
    assert (down.reads, signals.empty()) == (3, True)
