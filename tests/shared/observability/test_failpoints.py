"""Failpoints: their names, the death of a process at one of them, and none without the variable."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from shared.observability import failpoints
from tests.waiting import eventually

SCRIPT = """
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from shared.observability import failpoints

@failpoints.watched("engine.start")
def start():
    with failpoints.around("engine.put_file"):
        pass

@failpoints.watched("engine.fail")
def fail():
    raise ValueError

failpoints.before("database.commit")
for name in ("first", "second"):
    failpoints.begin(name)
    start()
    with ThreadPoolExecutor() as pool:
        pool.submit(copy_context().run, start).result()
try:
    fail()
except ValueError:
    print("done", flush=True)
"""
MET = [
    "process/1/database.commit.before",
    *(
        f"{operation}/{n}/engine.{point}"
        for operation in ("first", "second")
        for n in (1, 2)
        for point in ("start.before", "put_file.before", "put_file.after", "start.after")
    ),
    "second/1/engine.fail.before",
]


def read_met(directory: Path) -> list[str]:
    return [line.split("\t")[0] for line in (directory / "met").read_text().splitlines()]


def run(mode: str) -> subprocess.CompletedProcess[str]:
    command = ["env", f"{failpoints.VARIABLE}={mode}", sys.executable, "-c", SCRIPT]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_points_are_recorded_by_name(tmp_path: Path) -> None:
    for _ in range(2):
        assert run(f"led:{tmp_path}").stdout == "done\n"
    assert read_met(tmp_path) == MET * 2


def test_recorded_points_name_process_operation_and_thread(tmp_path: Path) -> None:
    run(f"led:{tmp_path}")
    lines = [line.split("\t") for line in (tmp_path / "met").read_text().splitlines()]
    met_by = {name: by.split(".") for name, by in lines}
    assert len({pid for pid, _, _ in met_by.values()}) == 1
    assert len({number for _, number, _ in met_by.values()}) == 3
    here, there = met_by["first/1/engine.start.before"], met_by["first/2/engine.start.before"]
    assert here[1] == there[1]
    assert here[2] != there[2]


def test_process_dies_at_the_point_on_the_first_run_only(tmp_path: Path) -> None:
    mode = f"kill:second/2/engine.start.after@{tmp_path / 'marker'}"
    killed = run(mode)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    assert run(mode).stdout == "done\n"


def test_process_dies_each_time_without_a_marker() -> None:
    assert [run(f"kill:{MET[0]}").returncode for _ in range(2)] == [-signal.SIGKILL] * 2


def test_process_dies_at_the_point_that_a_file_names(tmp_path: Path) -> None:
    armed = tmp_path / "armed"
    assert run(f"led:{tmp_path}").stdout == "done\n"
    armed.write_text(MET[-1])
    assert run(f"led:{tmp_path}").returncode == -signal.SIGKILL
    assert not armed.exists()
    assert read_met(tmp_path) == MET * 2


def test_operation_named_in_a_file_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = tmp_path / "held"
    held.write_text("first\nsecond\n")
    monkeypatch.setattr(failpoints, "_act", lambda _name: None)
    monkeypatch.setattr(failpoints, "_held", held)
    failpoints.begin("third")
    begun: list[str] = []

    def begin() -> None:
        failpoints.begin("second")
        begun.append("second")

    thread = threading.Thread(target=begin)
    thread.start()
    thread.join(5 * failpoints.HOLD_SECONDS)
    assert begun == []
    held.write_text("first\n")
    eventually(lambda: begun == ["second"])
    thread.join()


def test_unknown_mode_is_rejected() -> None:
    assert "ValueError" in run("explode").stderr


def test_decorated_function_has_points_when_they_are_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its module may have been imported before: the tests' processes are forked from one that has done so."""
    met: list[str] = []
    double = failpoints.watched("engine.start")(lambda number: 2 * number)
    assert (failpoints._act, double(2), met) == (None, 4, [])
    monkeypatch.setattr(failpoints, "_act", met.append)
    failpoints.begin("test")
    assert double(2) == 4
    assert met == ["test/1/engine.start.before", "test/1/engine.start.after"]
