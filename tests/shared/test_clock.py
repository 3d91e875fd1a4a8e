"""The time is the database's, even if the machine's clock is wrong."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import time_machine
from sqlalchemy.exc import OperationalError
from structlog.testing import capture_logs

from shared import clock
from shared.clock import after, now
from shared.db import database_clock
from shared.db.database import Database
from shared.db.database_clock import keep_clock_synced, start_clock_sync, sync_clock
from shared.nodes import placement
from tests.factories import SPEC_ID, make_node, make_spec
from tests.waiting import eventually

# Queries may be slow on a loaded machine.
CLOSE = timedelta(seconds=30)
OFF = (-86400, -3600, -90, 90, 3600, 86400)


@pytest.mark.parametrize("seconds", OFF)
class TestWrongMachineClock:
    def test_time_is_that_of_the_database(self, database: Database, seconds: int) -> None:
        right = datetime.now(UTC)
        with time_machine.travel(after(seconds)):
            sync_clock(database)
            assert abs(now() - right) < CLOSE
            assert abs(clock.machine_error() - timedelta(seconds=seconds)) < CLOSE
            assert clock.is_wrong()
            assert f"{'ahead of' if seconds > 0 else 'behind'} the database's" in clock.describe_error()

    def test_clock_change_after_the_reading_is_ignored(self, database: Database, seconds: int) -> None:
        sync_clock(database)
        right = now()
        with time_machine.travel(after(seconds)):
            assert abs(now() - right) < CLOSE
            assert clock.is_wrong()
        assert not clock.is_wrong()

    def test_nodes_are_found_with_a_wrong_clock(self, database: Database, seconds: int) -> None:
        make_spec(database)
        make_node(database, "node-a")
        with time_machine.travel(after(seconds)), database.transaction() as session:
            sync_clock(database)
            assert placement.place(session, SPEC_ID) == "node-a"


def test_clock_that_agrees_is_used(database: Database) -> None:
    sync_clock(database)
    with time_machine.travel(after(0.1)):
        assert clock.machine_time() <= now() <= clock.machine_time()
        assert clock.machine_error() == timedelta(0)
        assert not clock.is_wrong()


def test_clock_without_a_reading_is_used() -> None:
    with time_machine.travel(after(86400), tick=False):
        assert now() == clock.machine_time()
        assert not clock.is_wrong()


def test_time_passes_between_two_readings() -> None:
    sent_at = clock.read_ticks() - 3600
    clock.follow(datetime(2020, 1, 1, tzinfo=UTC), sent_at, sent_at)
    assert abs(now() - datetime(2020, 1, 1, 1, tzinfo=UTC)) < CLOSE


def test_slow_reading_replaces_a_quick_one_only_if_they_contradict_each_other() -> None:
    at = clock.read_ticks()
    clock.follow(datetime(2020, 1, 1, tzinfo=UTC), at, at)
    clock.follow(datetime(2020, 1, 1, 0, 0, 1, tzinfo=UTC), at - 10, at + 10)
    assert now() < datetime(2020, 1, 1, tzinfo=UTC) + CLOSE
    clock.follow(datetime(2021, 1, 1, tzinfo=UTC), at - 10, at + 10)
    assert now() > datetime(2021, 1, 1, tzinfo=UTC) - CLOSE


@pytest.fixture
def immediate_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readings in immediate succession."""
    monkeypatch.setattr(database_clock, "PAUSE_SECONDS", 0.01)


@pytest.mark.usefixtures("immediate_readings")
@pytest.mark.parametrize("error", [OperationalError("SELECT", {}, Exception()), RuntimeError("a defect")])
def test_following_survives_every_error(monkeypatch: pytest.MonkeyPatch, database: Database, error: Exception) -> None:
    requested: list[Database] = []

    def fail(database: Database) -> None:
        requested.append(database)
        raise error

    monkeypatch.setattr(database_clock, "sync_clock", fail)
    with capture_logs() as logs:
        ended = keep_clock_synced(database)
        eventually(lambda: len(requested) > 2)
        ended.set()
    assert {(line["event"], line["error"]) for line in logs} == {("clock_not_read", type(error).__name__)}


def test_clock_is_read_first(database: Database) -> None:
    with time_machine.travel(after(-3600)):
        start_clock_sync(database).set()
        assert clock.is_wrong()


def test_unavailable_database_does_not_prevent_the_start(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/no/such.db")) as away, capture_logs() as logs:
        start_clock_sync(away).set()
    assert logs[0]["event"] == "clock_not_read"
