"""A whole run: its stages, its reruns, and its summary."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tests.services.directories import REPOSITORY
from tests.stages.outcome import Outcome, Result, Verdict
from tests.stages.plan import Groups, Stage
from tests.stages.reruns import add_to_record, decide, read_record
from tests.stages.run import print_line, run_groups


def run_session(groups: Groups, directory: Path, *, record: Path | None, root: Path = REPOSITORY) -> int:
    """Run groups of stages and print the summary; return the exit status.

    Args:
        groups: the stages to run.
        directory: the directory for the stages' files.
        record: the record of reruns; None: failed tests are not rerun.
        root: the repository of the tests.
    """
    began = time.monotonic()
    outcomes = list(run_groups(groups, directory, root=root))
    planned = Counter(stage.name for group in groups for stage in group)
    left = list((planned - Counter(outcome.stage for outcome in outcomes)).elements())
    if not left and record is not None and any(outcome.failures for outcome in outcomes):
        outcomes = _run_again(groups, outcomes, directory, record, root)
    print_line(summarize(outcomes, left, time.monotonic() - began))
    return 0 if not left and all(outcome.is_good for outcome in outcomes) else 1


def _run_again(groups: Groups, outcomes: Sequence[Outcome], directory: Path, record: Path, root: Path) -> list[Outcome]:
    """Rerun failed tests if allowed; return the outcomes with their second results."""
    decision = decide(outcomes, read_record(record))
    if decision.refusal:
        print_line(f"No test is run again: {decision.refusal}.")
        return list(outcomes)
    print_line("Run again, once:\n" + "\n".join(f"  {failure.test}" for failure in decision.tests))
    stages = {stage.name: stage for group in groups for stage in group}
    again = [[_rerun_stage(stages[outcome.stage], outcome.failures)] for outcome in outcomes if outcome.failures]
    seconds = {outcome.stage: outcome for outcome in run_groups(again, directory, root=root)}
    settled = [settle(outcome, seconds.get(_rerun_name(outcome.stage))) for outcome in outcomes]
    passed = {result.test for outcome in settled for result in outcome.results if not result.is_bad}
    add_to_record([failure for failure in decision.tests if failure.test in passed], record)
    return settled


def _rerun_stage(stage: Stage, failures: Sequence[Result]) -> Stage:
    """A stage with only these tests, in one process."""
    tests = [failure.test for failure in failures]
    return replace(stage, name=_rerun_name(stage.name), command=(sys.executable, "-m", "pytest", *tests, "-n", "0"))


def _rerun_name(stage: str) -> str:
    return f"{stage}-rerun"


def settle(first: Outcome, second: Outcome | None) -> Outcome:
    """A stage's outcome with the second results of its failed tests, if the rerun was complete."""
    if second is None or not second.is_complete:
        return first
    again = {result.test: result for result in second.results}
    if any(failure.test not in again for failure in first.failures):
        return first
    results = tuple(again.get(result.test, result) for result in first.results)
    return replace(first, status=second.status, results=results)


def summarize(outcomes: Sequence[Outcome], left: Sequence[str], seconds: float) -> str:
    """The summary: a line for each stage that ran, and one for the whole run, with the stages that did not run."""
    total = sum((outcome.count() for outcome in outcomes), Counter[Verdict]())
    closing = f"{_counted(total)} in {seconds:.0f} s"
    if wrong := [outcome.stage for outcome in outcomes if not outcome.is_good]:
        closing += f"; NOT OK: {', '.join(wrong)}"
    if left:
        closing += f"; not run: {', '.join(left)}"
    return "\n".join(["", *map(_line, outcomes), closing])


def _line(outcome: Outcome) -> str:
    verdict = "ok" if outcome.is_good else "NOT OK"
    return f"{outcome.stage:<24} {outcome.seconds:>5.0f} s  {verdict:<6}  {_counted(outcome.count())}"


def _counted(count: Counter[Verdict]) -> str:
    failed = count[Verdict.FAILED] + count[Verdict.ERROR]
    skipped = f", {count[Verdict.SKIPPED]} skipped" if count[Verdict.SKIPPED] else ""
    return f"{count[Verdict.PASSED]} passed, {failed} failed{skipped}"
