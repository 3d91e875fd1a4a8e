"""The report of pairs, and its verdict, which determines the exit code of a nightly run."""

from argparse import Namespace

import pytest

from tests.drills.faults.pairs import Outcome, Pair, Report

PAIR = Pair("pause", ("api", "pause/1/database.commit.before"), ("worker", "sandboxes.pause/1/engine.stop.before"))


@pytest.mark.parametrize(
    ("outcomes", "problems", "is_kept"),
    [
        ([], [], False),
        ([Outcome(PAIR, died=True)], [], True),
        ([Outcome(PAIR, died=True), Outcome(PAIR, died=False)], [], False),
        ([Outcome(PAIR, died=True, problem="a lost write")], [], False),
        ([Outcome(PAIR, died=True)], ["pause: could not be recorded"], False),
    ],
)
def test_promise_is_kept_only_if_pairs_ran_and_all_died_twice(
    outcomes: list[Outcome], problems: list[str], is_kept: bool
) -> None:
    report = Report(Namespace(pairs="all", seed=1, database="sqlite", thorough=False, operations=["pause"]))
    report.plan("pause", [PAIR] * len(outcomes), problems)
    for outcome in outcomes:
        report.add(outcome)
    assert report.is_kept() == is_kept
    assert ("not reached: pause" in report.markdown()) == any(not outcome.died for outcome in outcomes)
