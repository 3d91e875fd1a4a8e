"""Pairs of deaths that leave the same writes done, and the same ones to do, are one state."""

from collections.abc import Sequence
from random import Random

from tests.drills.faults.crash_states import Hit, Point, crash_states
from tests.drills.faults.pair_states import Deaths, Recovery, all_pairs, distinct_pairs, group_pairs

START, CHECK = "sandboxes.start", "sandboxes.check"


def run(owner: str, *writes: str, process: str = "worker") -> list[Hit]:
    return [hit for name in writes for hit in points(owner, f"{name}.before", f"{name}.after", process=process)]


def points(owner: str, *names: str, process: str = "worker") -> list[Hit]:
    return [Hit(process, f"{owner}/1/{name}", owner, "t") for name in names]


def choose(hits: Sequence[Hit]) -> list[Point]:
    return crash_states(hits, lambda _: True)


def die(name: str, left: Sequence[Hit], *, owner: str = START, process: str = "worker") -> Recovery:
    """The recovery of an operation with three writes from a death at a point of the owner."""
    operation = [*run("POST /sandboxes", "save", process="api"), *run("process", "begin"), *run(START, "a", "b", "c")]
    return Recovery(operation, (process, f"{owner}/1/{name}"), left)


def grouped(*recoveries: Recovery) -> list[set[tuple[str, str]]]:
    return [set(map(names, pairs)) for pairs in group_pairs(recoveries, choose)]


def names(deaths: Deaths) -> tuple[str, str]:
    recovery, second = deaths
    return short(recovery.first), short(second)


def short(point: Point) -> str:
    return point[1].rpartition("/")[2]


def test_recoveries_that_complete_n_writes_have_n_plus_1_states() -> None:
    found = grouped(
        die("a.before", run(CHECK, "a", "b", "c")),
        die("a.after", run(CHECK, "b", "c")),
        die("b.after", run(CHECK, "c")),
        die("c.after", []),
    )
    assert found == [
        {("a.before", "a.before")},
        {("a.before", "a.after"), ("a.after", "b.before")},
        {("a.before", "b.after"), ("a.after", "b.after"), ("b.after", "c.before")},
        {("a.before", "c.after"), ("a.after", "c.after"), ("b.after", "c.after")},
    ]


def test_one_pair_of_each_state_is_chosen_by_chance() -> None:
    recoveries = [die("a.before", run(CHECK, "a", "b", "c")), die("a.after", run(CHECK, "b", "c"))]
    chosen = [distinct_pairs(recoveries, choose, Random(seed)) for seed in range(20)]
    assert {len(pairs) for pairs in chosen} == {4}
    assert {names(pair) for pairs in chosen for pair in pairs} == set(map(names, all_pairs(recoveries, choose)))


def test_death_before_any_write_of_a_routine_is_no_second_death() -> None:
    assert grouped(die("a.after", run("sweep", "d"))) == [{("a.after", "d.after")}]


def test_job_that_began_has_taken_its_message() -> None:
    found = grouped(die("a.after", [*run("sweep", "publish"), *run(CHECK, "b")]))
    assert found == [{("a.after", "publish.after")}, {("a.after", "b.before")}, {("a.after", "b.after")}]


def test_death_during_another_operation_has_its_own_state() -> None:
    publish, job = run("sweep", "publish"), run(CHECK, "b")
    mixed = [publish[0], job[0], publish[1], job[1]]
    assert grouped(die("a.after", mixed), die("b.before", mixed)) == [
        {("a.after", "b.before")},
        {("a.after", "publish.after")},
        {("a.after", "b.after"), ("b.before", "b.after")},
        {("b.before", "b.before")},
        {("b.before", "publish.after")},
    ]


def test_recoveries_with_different_remaining_work_differ() -> None:
    found = grouped(die("a.before", run(CHECK, "a", "b")), die("a.after", run(CHECK, "b", "c")))
    assert all(len(pairs) == 1 for pairs in found)
    assert len(found) == 6


def test_nested_write_differs_from_the_enclosing_one() -> None:
    nested = points(CHECK, "disk.before", "format.before", "format.after", "disk.after")
    found = grouped(die("a.after", nested))
    assert [short(second) for _, second in all_pairs([die("a.after", nested)], choose)] == [
        "disk.before",
        "format.before",
        "format.after",
        "disk.after",
    ]
    assert len(found) == 4


def test_write_that_failed_differs_from_one_that_did_not_begin() -> None:
    failed = [*points(CHECK, "b.before"), *run(CHECK, "c")]
    found = grouped(die("a.after", failed), die("b.after", run(CHECK, "c")))
    assert {("a.after", "c.after")} in found


def test_point_of_a_starting_process_is_one_pair_of_an_operation() -> None:
    left = run("process", "begin")
    found = grouped(die("a.before", left), die("a.after", left))
    assert found == [
        {("a.before", "begin.before"), ("a.after", "begin.before")},
        {("a.before", "begin.after"), ("a.after", "begin.after")},
    ]


def test_all_pairs_within_a_start_are_kept() -> None:
    left = run("process", "begin")
    found = grouped(die("begin.before", left, owner="process"), die("begin.after", left, owner="process"))
    assert sum(map(len, found)) == len(found) == 4


def test_second_death_of_an_api_process_is_always_kept() -> None:
    left = run("POST /sandboxes", "save", process="api")
    found = grouped(die("a.before", left), die("b.before", left))
    assert sum(map(len, found)) == len(found) == 4


def test_client_without_a_response_makes_a_difference() -> None:
    """The API died after its write, and the worker before it began: what is done is the same."""
    left = run(CHECK, "a")
    found = grouped(die("save.after", left, owner="POST /sandboxes", process="api"), die("a.before", left))
    assert all(len(pairs) == 1 for pairs in found)


def test_commits_that_write_something_else_make_a_difference() -> None:
    """Both pairs leave two commits done, and two to do, but one a second claim, and the other a change of status."""
    operation = commits(START, "claim", "change", "end")
    found = grouped(
        Recovery(
            commits(START, "claim", "change", "end"), commit(1, "after"), commits(CHECK, "claim", "change", "end")
        ),
        Recovery(operation, commit(2, "after"), commits(CHECK, "claim", "end")),
    )
    assert all(len(pairs) == 1 for pairs in found)


def commits(owner: str, *contents: str) -> list[Hit]:
    return [
        Hit("worker", commit(number, when, owner)[1], owner, "t", content)
        for number, content in enumerate(contents, 1)
        for when in ("before", "after")
    ]


def commit(number: int, when: str, owner: str = START) -> Point:
    return "worker", f"{owner}/{number}/database.commit.{when}"
