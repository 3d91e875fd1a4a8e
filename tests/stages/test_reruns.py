"""A failed test is rerun once and recorded, unless that would hide a defect."""

import tomllib
from pathlib import Path

from tests.stages.conftest import FLAKY, Project
from tests.stages.outcome import Result, Verdict
from tests.stages.reruns import RECORD, add_to_record, read_record

NEVER = "def test_bad(): assert False, 'again'\n"
FIXTURE = """
import pytest

@pytest.fixture
def it():
    yield
    raise OSError("left behind")

def test_it(it): 1
"""
THREE = "".join(
    f"\n{FLAKY.replace('seen', f'seen_{number}').replace('test_', f'test_{number}_')}" for number in range(3)
)


def test_failure_that_passes_in_the_rerun_is_accepted_and_recorded(project: Project) -> None:
    project.write(test_a=FLAKY, test_b="def test_good(): pass\n")
    assert project.run() == 0
    assert project.said.splitlines()[-1].startswith("2 passed, 0 failed in ")
    (entry,) = tomllib.loads(project.record.read_text())["rerun"]
    assert (entry["test"], entry["cause"]) == ("test_a.py::test_flaky", "")
    assert "it fails the first time" in entry["error"]
    assert {"at", "commit", "variant"} <= entry.keys()


def test_any_error_is_recorded_such_that_it_can_be_read(tmp_path: Path) -> None:
    error = "\U0001f525 \\ \"'''\" é \ud83d \x7f\x1b[1m\nline"
    add_to_record([Result("test_a.py::test_it[\U0001f525-\x7f]", Verdict.FAILED, 1.0, error)], tmp_path / "record")
    (entry,) = tomllib.loads((tmp_path / "record").read_text())["rerun"]
    assert entry["error"] == "\U0001f525 \\ \"'''\" é  [1m\nline"


def test_failure_that_fails_again_is_bad_and_not_recorded(project: Project) -> None:
    project.write(test_a=NEVER)
    assert project.run() == 1
    assert "Run again" in project.said
    assert not project.record.exists() or read_record(project.record) == []


def test_failure_that_passes_is_recorded_even_if_another_one_fails_again(project: Project) -> None:
    project.write(test_a=FLAKY, test_b=NEVER)
    assert project.run() == 1
    assert project.said.splitlines()[-1].startswith("1 passed, 1 failed in ")
    assert read_record(project.record) == ["test_a.py::test_flaky"]


def test_recorded_test_is_not_run_again(project: Project) -> None:
    project.write(test_a=FLAKY)
    assert project.run() == 0
    (project.root / "seen").unlink()
    assert project.run() == 1
    assert "has been run again before" in project.said
    assert read_record(project.record) == ["test_a.py::test_flaky"]


def test_record_holds_for_every_variant(project: Project) -> None:
    variants = "import pytest\n" + FLAKY.replace(
        "def test_flaky()", "@pytest.mark.parametrize('x', [1, 2])\ndef test_flaky(x)"
    )
    project.write(test_a=variants)
    assert project.run() == 0
    assert read_record(project.record) == ["test_a.py::test_flaky"]
    (project.root / "seen").unlink()
    assert project.run(project.stage("test_a.py::test_flaky[2]")) == 1


def test_two_failures_are_run_again_and_three_are_not(project: Project) -> None:
    project.write(test_a=FLAKY, test_b=FLAKY.replace("seen", "found"))
    assert project.run() == 0
    project.write(test_c=THREE)
    assert project.run() == 1
    assert "3 tests failed" in project.said


def test_failures_of_all_stages_count(project: Project) -> None:
    project.write(test_a=FLAKY, test_b=THREE)
    stages = [project.stage("test_a.py", name="first"), project.stage("test_b.py", "-k", "0 or 1", name="second")]
    assert project.run(*stages) == 1
    assert "3 tests failed" in project.said


def test_drill_is_never_run_again(project: Project) -> None:
    project.write(tests__drills__test_a=FLAKY)
    assert project.run(project.stage("-p", "tests.selection")) == 1
    assert "is never run again" in project.said
    assert not project.record.exists()


def test_error_in_a_fixture_is_a_failure(project: Project) -> None:
    project.write(test_a=FIXTURE)
    assert project.run() == 1
    assert "0 passed, 1 failed" in project.said.splitlines()[-1]


def test_record_of_this_repository_can_be_read() -> None:
    assert isinstance(read_record(RECORD), list)
