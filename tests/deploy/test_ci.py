"""`.ci/run` reports the first result of `make test`, mostly with a stub of `make`."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY
from tests.waiting import eventually

# Each `make test` reads one line of `outcomes`: the file with its output, and its status. Without a line, it succeeds.
MAKE = """#!/usr/bin/env bash
echo "make $*" >> made
[ "$1" = test ] || exit 0
mkdir -p .pytest_cache
read -r words status < outcomes || { echo "7 passed, 0 failed in 1 s"; exit 0; }
sed -i 1d outcomes
cat "$words"
exit "$status"
"""
ENTRY = """# Of these, only entries are printed.

[[rerun]]
test = "tests/test_it.py::test_flaky"
cause = ""
"""
# Tests that end some time after a signal.
RECIPE = """
test:
	@trap 'sleep 0.2; echo ended; exit 1' TERM; touch began; until test -e proceed; do sleep 0.02; done
"""
# Causes of make's status 2, with the output of pytest and of the commands before it.
FAILURES = {
    "a failure": "FAILED tests/test_it.py::test_one - assert False\n=== 1 failed, 6 passed in 1.00s ===",
    "a collection error": "ERROR tests/test_it.py - OSError: No space left on device\n"
    "!!!! Interrupted: 1 error during collection !!!!\n=== 1 error in 1.00s ===",
    "an internal error": "FAILED tests/test_it.py::test_one - assert False\nINTERNALERROR> OSError: broken pipe\n"
    "=== 1 failed in 1.00s ===",
    "a lost process": "FAILED tests/test_it.py::test_one - worker 'gw0' crashed\n=== 1 failed in 1.00s ===",
    "a failing setup": "apt-get: could not get lock",
    "a drill": "FAILED tests/drills/faults/test_single_points.py::test_promise_is_kept[sqlite-start] - assert\n"
    "=== 1 failed, 6 passed in 1.00s ===",
}


@pytest.mark.parametrize("failure", FAILURES)
def test_first_failure_is_final(tmp_path: Path, failure: str) -> None:
    done = run(tmp_path, FAILURES[failure])
    assert done.returncode != 0
    assert made(tmp_path) == ["make test"]


def test_log_of_an_earlier_run_is_ignored(tmp_path: Path) -> None:
    log = tmp_path / "var" / "log" / "tests.log"
    log.parent.mkdir(parents=True)
    log.write_text(FAILURES["a failure"])
    assert run(tmp_path, FAILURES["a failing setup"]).returncode != 0
    assert made(tmp_path) == ["make test"]


def test_log_is_of_this_run(tmp_path: Path) -> None:
    run(tmp_path, FAILURES["a failure"])
    (tmp_path / "outcomes").write_text("")
    start(tmp_path)
    assert "FAILED" not in (tmp_path / "var" / "log" / "ci.log").read_text()


def test_run_that_passes_prints_the_record_last(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == 0
    assert done.stdout == ("7 passed, 0 failed in 1 s\n\ntests/reruns.toml: 1\n\n" + ENTRY[ENTRY.index("[[rerun]]") :])


def test_run_that_fails_prints_the_record_last(tmp_path: Path) -> None:
    done = run(tmp_path, FAILURES["a failure"])
    assert done.stdout.endswith(ENTRY[ENTRY.index("[[rerun]]") :])


@pytest.mark.parametrize("flags", ["i", "n"])
def test_flags_in_the_environment_hide_no_failure(tmp_path: Path, flags: str) -> None:
    program = copy(tmp_path)
    (tmp_path / "Makefile").write_text("test:\n\t@false\n")
    assert subprocess.run([program], env=os.environ | {"MAKEFLAGS": flags}, check=False).returncode != 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_signal_ends_the_tests_first(tmp_path: Path, number: signal.Signals) -> None:
    program = copy(tmp_path)
    (tmp_path / "Makefile").write_text(RECIPE)
    command = ["env", "--default-signal=INT,TERM,HUP", str(program)]  # tests may run under nohup, or in the background
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as started:
        try:
            eventually((tmp_path / "began").exists)
            started.send_signal(number)
            assert started.wait(60) != 0
            assert "ended" in (tmp_path / "var" / "log" / "ci.log").read_text()
        finally:
            (tmp_path / "proceed").touch()


def copy(directory: Path) -> Path:
    """Copy `.ci/run` into a directory with a record of one rerun; return the copy."""
    for name in (".ci", "tests"):
        (directory / name).mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", directory / ".ci" / "run")
    (directory / "tests" / "reruns.toml").write_text(ENTRY)
    return directory / ".ci" / "run"


def run(directory: Path, *failures: str) -> subprocess.CompletedProcess[str]:
    """Run a copy of `.ci/run` in a directory where `make test` fails with each of these outputs, and then passes."""
    copy(directory)
    make = directory / "bin" / "make"
    make.parent.mkdir()
    make.write_text(MAKE)
    make.chmod(0o755)
    for number, words in enumerate(failures):
        (directory / f"words-{number}").write_text(words + "\n")
    (directory / "outcomes").write_text("".join(f"words-{number} 2\n" for number in range(len(failures))))
    return start(directory)


def start(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the copy."""
    environment = os.environ | {"PATH": f"{directory / 'bin'}:{os.environ['PATH']}"}
    return subprocess.run(
        [directory / ".ci" / "run"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def made(directory: Path) -> list[str]:
    """The recorded commands."""
    return (directory / "made").read_text().splitlines()
