"""A run of stages is good if every selected test ran and passed, and bad in every other case."""

import re
from dataclasses import replace

import pytest

from tests.services.engine_address import ENGINE
from tests.stages import plan, run
from tests.stages.conftest import FLAKY, Project

GOOD = "def test_good(): pass\n"
BAD = "def test_bad(): assert False\n"
LOST = "import os\n\ndef test_lost(): os._exit({status})\n"
GROUP = """
import os
import pytest

@pytest.mark.xdist_group("both")
class TestIt:
    def test_one(self): print("process", os.getpid())
    def test_two(self): print("process", os.getpid())
"""
INTERRUPTED = "def test_interrupted(): raise KeyboardInterrupt\n"
BROKEN_REPORT = "def pytest_runtest_logreport(report): raise RuntimeError('no space left')\n"


def test_run_in_which_all_tests_pass_is_good(project: Project) -> None:
    project.write(
        test_a=GOOD, test_b="import pytest\n@pytest.mark.parametrize('x', ['a/b', 'c::d'])\n" + "def test(x): 1\n"
    )
    assert project.run() == 0
    assert project.said.splitlines()[-1].startswith("3 passed, 0 failed in ")


def test_run_with_processes_and_groups_is_good(project: Project) -> None:
    project.write(test_a=GOOD, test_b=GROUP)
    assert project.run(project.stage("-n", "2", "--dist", "loadgroup", "-rP")) == 0
    assert project.said.splitlines()[-1].startswith("3 passed, 0 failed in ")
    processes = re.findall(r"^process (\d+)", (project.directory / "all.log").read_text(), re.MULTILINE)
    assert len(processes) == 2
    assert len(set(processes)) == 1


def test_stages_are_counted_together(project: Project) -> None:
    project.write(test_a=GOOD, test_b=BAD)
    stages = [project.stage("test_a.py", name="first"), project.stage("test_b.py", name="second")]
    assert project.run(*stages) == 1
    assert project.said.splitlines()[-1].startswith("1 passed, 1 failed in ")
    assert project.said.splitlines()[-1].endswith("NOT OK: second")


def test_run_with_a_skipped_test_is_bad(project: Project) -> None:
    project.write(test_a=GOOD, test_b="import pytest\ndef test_skipped(): pytest.skip('not today')\n")
    assert project.run() == 1
    assert "1 tests were skipped, such as test_b::test_skipped" in project.said


TWO = ("-n", "2")


@pytest.mark.parametrize(
    ("second", "arguments", "problem"),
    [
        ("import nothing_of_that_name\n", (), "exit status 2"),
        # With xdist, pytest reports the error as a failed test, and runs all others.
        ("import nothing_of_that_name\n", TWO, "of no selected test"),
        (INTERRUPTED, (), "exit status 2"),
        (LOST.format(status=0), (), "exit status 0, and no results"),
        (LOST.format(status=0), TWO, "lost a process"),
    ],
    ids=["collection error", "one of a process", "interruption", "end in a test", "end of a process"],
)
def test_incomplete_run_fails_without_a_rerun(
    project: Project, second: str, arguments: tuple[str, ...], problem: str
) -> None:
    project.write(test_a=FLAKY, test_b=second)
    assert project.run(project.stage(*arguments)) == 1
    assert problem in project.said
    assert "Run again" not in project.said
    assert not project.record.exists()


def test_internal_error_is_bad(project: Project) -> None:
    project.write(test_a=GOOD, conftest=BROKEN_REPORT)
    assert project.run() == 1
    assert "exit status 3" in project.said


def test_run_without_tests_is_bad(project: Project) -> None:
    project.write(test_a=GOOD)
    assert project.run(project.stage("-k", "nothing")) == 1
    assert "no tests were selected" in project.said


def test_result_of_an_earlier_run_is_not_taken_for_this_one(project: Project) -> None:
    project.write(test_a=GOOD)
    assert project.run() == 0
    (project.root / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    assert project.run() == 1
    assert "0 passed, 0 failed" in project.said.splitlines()[-1]
    assert GOOD not in (project.directory / "all.log").read_text()


def test_environment_leaves_no_tests_out(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_ADDOPTS", "--deselect test_b.py")
    project.write(test_a=GOOD, test_b=BAD)
    assert project.run() == 1
    assert project.said.splitlines()[-1].startswith("1 passed, 1 failed in ")


def test_only_a_stage_replaces_the_image_under_test(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_TEST_SANDBOX_IMAGE", "other")
    image = plan.program("image", "sh", "-c", 'test "$AW_TEST_SANDBOX_IMAGE" = "$EXPECTED"')
    chosen = replace(image, name="next", environment=(("AW_TEST_SANDBOX_IMAGE", "next"), ("EXPECTED", "next")))
    assert project.run(image, chosen) == 0


def test_program_that_fails_is_bad_and_ends_the_run(project: Project) -> None:
    project.write(test_a="from pathlib import Path\n\ndef test_it(): Path(__file__).with_name('ran').touch()\n")
    assert project.run(plan.program("lint", "false"), project.stage()) == 1
    assert not project.has_run("ran")
    assert project.said.splitlines()[-1].endswith("NOT OK: lint; not run: all")


def test_programs_use_the_engine_of_the_tests(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_DOCKER_HOST", "unix:///service.sock")
    assert project.run(plan.program("images", "sh", "-c", f'[ "$AW_DOCKER_HOST" = "{ENGINE}" ]')) == 0


def test_stage_that_takes_too_long_is_stopped_and_bad(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    # If these tests run in the background, the stage ignores the interrupt, and only the kill after it ends the stage.
    monkeypatch.setattr(run, "GRACE_SECONDS", 0.5)
    stage = plan.Stage("long", ("sleep", "600"), minutes=0.01)
    assert project.run(stage) == 1
    assert "NOT OK: long" in project.said
