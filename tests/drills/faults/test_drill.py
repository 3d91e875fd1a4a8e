"""The recording of the recovery from a death, whichever process is faster."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.drills.faults import drill, runner
from tests.drills.faults.crash_states import Hit
from tests.drills.faults.operation import Operation, routine
from tests.drills.faults.points import Points
from tests.drills.faults.runner import PROCESSES, Runner

RESUME = Operation(owns=frozenset({"POST /resume", "sandboxes.resume"}), act=lambda _runner, _subject: None)
OF_API = "POST /resume/1/publish.after"
OF_WORKER = "sandboxes.resume/1/unpause.before"
OF_SWEEP = "sweep/1/claim.before"


class FakeRunner(Runner):
    """A runner whose processes reach their points at once, and which settles at once."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.is_done = True
        self.held_at_start: set[str] = set()
        self.started_at = 0.0
        self.points = {name: Points(name, directory / name) for name in PROCESSES}

    def reach(self, process: str, point: str) -> None:
        with (self._directory / process / "reached").open("a") as file:
            file.write(f"{point}\t1.1\t\n")

    def adopt(self, settings: object) -> None:
        pass

    def dies_at(self, process: str, point: str, act: Callable[[], None]) -> bool:
        act()
        self.reach("api", OF_API)
        self.reach("worker", OF_WORKER)
        return True

    def start_process(self, name: str) -> None:
        self.held_at_start = set(self.points["worker"].held())
        self.started_at = time.time()
        if name == "worker":
            self.reach("worker", OF_SWEEP)

    def is_at_rest(self) -> bool:
        return self.is_done

    def await_agreement(self, *, closely: bool = True) -> None:
        pass

    def clear(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _no_keys_and_short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drill, "set_key_use", lambda _runner, _at: None)
    monkeypatch.setattr(drill, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(runner, "AGREEMENT_SECONDS", 0.5)


def points(hits: Iterable[Hit]) -> list[str]:
    return [hit.point for hit in hits]


def test_recovery_from_the_api_s_death_includes_work_before_the_detection(tmp_path: Path) -> None:
    """Otherwise a fast worker would leave nothing to record, and the recording would never end."""
    assert points(drill.record_recovery(FakeRunner(tmp_path), RESUME, ("api", OF_API))) == [OF_WORKER]


def test_recovery_from_the_worker_s_death_excludes_what_led_to_it(tmp_path: Path) -> None:
    assert points(drill.record_recovery(FakeRunner(tmp_path), RESUME, ("worker", OF_WORKER))) == [OF_SWEEP]


def test_recovery_with_nothing_left_to_do_has_no_points(tmp_path: Path) -> None:
    """A process that dies before its commit leaves nothing."""
    settings = Operation(owns=frozenset({"POST /settings"}), act=lambda _runner, _subject: None)
    assert drill.record_recovery(FakeRunner(tmp_path), settings, ("api", "POST /settings/1/commit.before")) == []


def test_other_routines_are_held_during_a_recovery(tmp_path: Path) -> None:
    faked = FakeRunner(tmp_path)
    drill.record_recovery(faked, RESUME, ("worker", OF_WORKER))
    assert faked.held_at_start == {"events", "network", "resync"}


def test_routine_is_not_held_during_its_own_recovery(tmp_path: Path) -> None:
    """Before its first write, it alone knows what there is to do."""
    faked = FakeRunner(tmp_path)
    drill.record_recovery(faked, routine("resync", act=lambda _runner, _subject: None), ("worker", OF_WORKER))
    assert faked.held_at_start == {"events", "network"}


def test_recovery_of_events_begins_in_a_later_second_than_the_death(tmp_path: Path) -> None:
    faked, died_at = FakeRunner(tmp_path), 0.0

    def act(_runner: Runner, _subject: str) -> None:
        nonlocal died_at
        died_at = time.time()

    drill.record_recovery(faked, routine("events", act=act), ("worker", OF_WORKER))
    assert int(faked.started_at) > int(died_at) > 0


def test_recovery_that_does_not_settle_is_an_error(tmp_path: Path) -> None:
    never_settles = FakeRunner(tmp_path)
    never_settles.is_done = False
    with pytest.raises(AssertionError, match="does not settle"):
        drill.record_recovery(never_settles, RESUME, ("worker", OF_WORKER))


def test_operation_without_points_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="does not settle"):
        drill.record(FakeRunner(tmp_path), RESUME)
