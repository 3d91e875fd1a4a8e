"""The names of failpoints, the death of a process at one of them, and held operations."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.observability import failpoints
from tests.drills.faults import observer
from tests.services.directories import REPOSITORY
from tests.services.interpreters import Interpreters
from tests.waiting import eventually

Run = Callable[[], subprocess.CompletedProcess[str]]

REACHED = [
    "process/1/database.commit.before",
    *(
        f"{operation}/{n}/engine.{point}"
        for operation in ("first", "second")
        for n in (1, 2)
        for point in ("start.before", "put_file.before", "put_file.after", "start.after")
    ),
    "second/1/engine.fail.before",
]


def read_reached(directory: Path) -> list[str]:
    return [line.split("\t")[0] for line in (directory / "reached").read_text().splitlines()]


@pytest.fixture
def run(interpreters: Interpreters, tmp_path: Path) -> Run:
    """A function that runs the program once."""
    arguments = ("-m", "tests.drills.faults.observer", "tests.drills.faults.failing")
    environment = os.environ | {observer.VARIABLE: str(tmp_path)}
    return lambda: interpreters.run(*arguments, cwd=REPOSITORY, env=environment)


def test_points_are_recorded_by_name(run: Run, tmp_path: Path) -> None:
    for _ in range(2):
        assert run().stdout == "done\n"
    assert read_reached(tmp_path) == REACHED * 2


def test_recorded_points_name_process_operation_and_thread(run: Run, tmp_path: Path) -> None:
    run()
    lines = [line.split("\t") for line in (tmp_path / "reached").read_text().splitlines()]
    reached_by = {name: by.split(".") for name, by, _ in lines}
    assert len({pid for pid, _, _ in reached_by.values()}) == 1
    assert len({number for _, number, _ in reached_by.values()}) == 3
    here, there = reached_by["first/1/engine.start.before"], reached_by["first/2/engine.start.before"]
    assert here[1] == there[1]
    assert here[2] != there[2]


@pytest.mark.parametrize("point", [REACHED[0], "second/2/engine.start.after", REACHED[-1]])
def test_process_dies_once_at_the_point_that_a_file_names(run: Run, tmp_path: Path, point: str) -> None:
    armed = tmp_path / "armed"
    armed.write_text(point)
    killed = run()
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    assert not armed.exists()
    assert read_reached(tmp_path) == REACHED[: REACHED.index(point) + 1]
    assert run().stdout == "done\n"


def test_operation_named_in_a_file_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = tmp_path / "held"
    held.write_text("first\nsecond\n")
    monkeypatch.setattr(failpoints, "observer", observer.file_observer(tmp_path))
    failpoints.begin("third")
    begun: list[str] = []

    def begin() -> None:
        failpoints.begin("second")
        begun.append("second")

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join(5 * observer.HOLD_SECONDS)
    assert begun == []
    held.write_text("first\n")
    eventually(lambda: begun == ["second"])
    thread.join()
