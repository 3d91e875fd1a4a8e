"""An operation's preconditions are established even if they need the routines that it holds."""

from pathlib import Path

import pytest

from tests.drills.faults import runner as module
from tests.drills.faults.points import Points
from tests.drills.faults.runner import Runner


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    monkeypatch.setattr(module, "SOON_SECONDS", 0.1)
    runner = object.__new__(Runner)
    runner.points = {"worker": Points("worker", tmp_path)}
    runner.hold(["sweep"])
    return runner


def test_routines_stay_blocked_while_they_are_not_needed(runner: Runner) -> None:
    held: list[list[str]] = []

    def check_twice() -> bool:
        held.append(runner.points["worker"].held())
        return len(held) == 2

    runner.await_given(check_twice)
    assert held == [["sweep"], ["sweep"]]


def test_blocked_task_that_is_needed_runs_until_its_work_is_done(runner: Runner) -> None:
    """The engine may refuse an action once, and only the sweep retries it."""
    runner.await_given(lambda: runner.points["worker"].held() == [])
    assert runner.points["worker"].held() == ["sweep"]
