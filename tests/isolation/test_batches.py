"""The order of batches, and the single run of a control that several attacks share."""

from collections.abc import Sequence

import pytest

from tests.isolation.attack import Attempt, Outcome, at
from tests.isolation.places import LAST, Batches

REACHED = Outcome(reached=True, evidence="")
HEARD = at("B", "network.heard", token="t")
SENT = at("A", "network.send_only", HEARD, token="t")


class Noted(Batches):
    """Records what it would run, and runs nothing."""

    def __init__(self, *attempts: Attempt) -> None:
        super().__init__(attempts, {}, {})
        self.ran: list[Attempt] = []

    def run_all(self) -> None:
        for lane in self.lanes():
            self.run(lane)

    def _run(self, batch: Sequence[Attempt]) -> list[Outcome]:
        if batch[0].function.startswith("broken"):
            raise AssertionError("a defect")
        self.ran += batch
        return [REACHED] * len(batch)


def test_control_shared_by_several_attacks_runs_once() -> None:
    batches = Noted(*(at("host", "http.request", url=url) for url in "aab"))
    batches.run_all()
    assert [one.arguments["url"] for one in batches.ran] == ["a", "b"]
    assert batches.outcome(at("host", "http.request", url="a")) == REACHED


def test_batches_of_a_container_are_one_lane_and_those_of_the_machine_are_several() -> None:
    functions = ("network.ping", "http.raw")
    batches = Noted(*(at(place, function) for place in ("A", "host", "B") for function in functions))
    lanes = [[place for place, _ in lane] for lane in batches.lanes()]
    assert sorted(lanes) == [["A", "A"], ["B", "B"], ["host"], ["host"]]


def test_deciding_attempt_runs_after_the_one_it_decides() -> None:
    batches = Noted(SENT, HEARD)
    assert batches.before(HEARD.batch) == {SENT.batch}
    assert batches.before(SENT.batch) == set()
    batches.run_all()
    assert batches.ran == [SENT, HEARD]


def test_search_for_traces_runs_last() -> None:
    batches = Noted(at(LAST[0], f"{LAST[1]}.files_show"), at("A", "http.raw"), at("host", "http.raw"))
    assert batches.before(LAST) == {("A", "http"), ("host", "http")}


def test_defect_of_a_batch_is_the_outcome_of_its_own_attempts() -> None:
    broken, sound = at("A", "broken.probe"), at("A", "files.list_folder")
    batches = Noted(broken, sound)
    batches.run_all()
    assert batches.outcome(sound) == REACHED
    for _ in range(2):
        with pytest.raises(AssertionError, match="a defect"):
            batches.outcome(broken)
