"""`.ci/run`, with a `make` that fails as told."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY

# Each run of the tests takes one line of `outcomes`: what fails in it.
MAKE = """#!/usr/bin/env bash
echo "make $*" >> made
[ "$1" = test ] || exit 0
read -r failed < outcomes || true
sed -i 1d outcomes
mkdir -p .pytest_cache
for name in $failed; do echo "FAILED tests/test_it.py::$name - assert False"; done
if [ -z "$failed" ]; then echo "===== 7 passed in 1.00s ====="; exit 0; fi
echo "===== 1 failed, 6 passed in 1.00s ====="
echo "make: *** [Makefile:30: test] Error 1"
exit 2
"""
TEST = "make test ARGS="
LOOK = "make test ARGS=--last-failed --last-failed-no-failures none"


@pytest.mark.parametrize(
    ("outcomes", "status", "runs"),
    [
        ([""], 0, [TEST]),
        (["one", "", "", ""], 0, [TEST, LOOK, LOOK, LOOK]),
        (["one two", "", "", ""], 0, [TEST, LOOK, LOOK, LOOK]),
        (["one", "", "one"], 2, [TEST, LOOK, LOOK]),
        (["one two three"], 2, [TEST]),
    ],
)
def test_few_failures_are_looked_at_again(tmp_path: Path, outcomes: list[str], status: int, runs: list[str]) -> None:
    done = run(tmp_path, outcomes)
    assert done.returncode == status, done.stdout + done.stderr
    assert (tmp_path / "made").read_text().splitlines() == ["make lint", *runs]
    assert done.stdout.splitlines()[-1].endswith("in 1.00s =====")


def test_what_passed_later_is_named(tmp_path: Path) -> None:
    last = run(tmp_path, ["one", "", "", ""]).stdout.splitlines()[-3:]
    assert last[0] == "Passed in 3 of 3 looks, and failed before; to be looked into:"
    assert last[1] == "FAILED tests/test_it.py::one - assert False"


def run(directory: Path, outcomes: list[str]) -> subprocess.CompletedProcess[str]:
    (directory / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", directory / ".ci" / "run")
    (directory / "bin").mkdir()
    make = directory / "bin" / "make"
    make.write_text(MAKE)
    make.chmod(0o755)
    (directory / "outcomes").write_text("".join(f"{line}\n" for line in outcomes))
    environment = os.environ | {"PATH": f"{make.parent}:{os.environ['PATH']}"}
    return subprocess.run(
        [directory / ".ci" / "run"], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
