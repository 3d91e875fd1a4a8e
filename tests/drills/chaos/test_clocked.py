"""A step of the machine's clock is one of the database's, too; that of one process is not."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shared import clock
from shared.db import database_clock
from shared.db.database import Database
from tests.drills.chaos.clocked import MACHINE, offset_clocks

HOUR = 3600


@pytest.fixture
def clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the clocks' files, for which this process's clocks are offset."""
    monkeypatch.setattr(clock, "machine_time", clock.machine_time)
    monkeypatch.setattr(database_clock, "_read_time", database_clock._read_time)
    offset_clocks(tmp_path / "process.clock")
    yield tmp_path
    clock._reading = None


@pytest.mark.parametrize(
    ("process", "machine", "now", "error"), [(HOUR, 0, 0, HOUR), (0, HOUR, HOUR, 0), (0, -HOUR, -HOUR, 0)]
)
def test_service_follows_a_clock_step_of_the_machine_but_not_of_a_process(
    database: Database, clocks: Path, process: int, machine: int, now: int, error: int
) -> None:
    (clocks / "process.clock").write_text(str(process))
    (clocks / MACHINE).write_text(str(machine))
    database_clock.sync_clock(database)
    assert (clock.now() - datetime.now(UTC)).total_seconds() == pytest.approx(now, abs=60)
    assert clock.machine_error().total_seconds() == pytest.approx(error, abs=60)
