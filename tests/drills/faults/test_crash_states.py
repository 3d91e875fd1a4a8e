"""n writes in a row have n + 1 crash states; all points are kept where that is not certain."""

import pytest

from tests.drills.faults.crash_states import Hit, all_points, crash_states


def hits_at(*points: str, process: str = "worker", instance: str = "1", thread: str = "t") -> list[Hit]:
    return [Hit(process, f"job/1/{point}", instance, thread) for point in points]


def names(points: list[tuple[str, str]]) -> list[str]:
    return [point.removeprefix("job/1/") for _, point in points]


def reduced(hits: list[Hit], but: str = "never") -> list[str]:
    return names(crash_states(hits, lambda point: but not in point))


A, B, C = (("a.before", "a.after"), ("b.before", "b.after"), ("c.before", "c.after"))


@pytest.mark.parametrize("writes", [1, 2, 5])
def test_sequence_of_n_writes_has_n_plus_1_crash_states(writes: int) -> None:
    hits = [each for n in range(writes) for each in hits_at(f"{n}.before", f"{n}.after")]
    assert reduced(hits) == ["0.before", *(f"{n}.after" for n in range(writes))]
    assert len(all_points(hits, lambda _: True)) == 2 * writes


def test_instances_that_interleave_are_reduced_separately() -> None:
    mixed = [
        *hits_at("a.before", "a.after", instance="1"),
        *hits_at("c.before", "c.after", instance="2"),
        *hits_at("b.before", instance="1"),
        *hits_at("d.before", instance="2"),
    ]
    assert reduced(mixed) == ["a.before", "a.after", "c.before", "c.after"]


def test_first_write_of_another_instance_keeps_its_before() -> None:
    hits = [*hits_at(*A, instance="1"), *hits_at(*B, instance="2")]
    assert reduced(hits) == [*A, *B]


def test_point_that_one_instance_reaches_first_is_kept() -> None:
    """The process dies at the first hit, which may be the other instance's in the next run."""
    hits = [*hits_at(*A, *B, instance="1"), *hits_at(*B, instance="2")]
    assert reduced(hits) == [*A, *B]


def test_instance_in_two_threads_keeps_all_points() -> None:
    hits = [*hits_at(*A), *hits_at(*B, thread="u")]
    assert reduced(hits) == [*A, *B]


def test_instance_that_is_not_known_keeps_all_points() -> None:
    hits = [Hit("worker", point) for point in (*A, *B)]
    assert names(crash_states(hits, lambda _: True)) == [*A, *B]


def test_api_process_keeps_all_points() -> None:
    """The process may have responded to its client in between."""
    assert reduced(hits_at(*A, *B, process="api")) == [*A, *B]


def test_write_that_failed_keeps_the_next_before() -> None:
    assert reduced(hits_at("a.before", *B)) == ["a.before", *B]


def test_nested_write_keeps_its_before() -> None:
    assert reduced(hits_at("a.before", *B, "a.after", *C)) == ["a.before", *B, "a.after", "c.after"]


def test_before_is_kept_where_its_after_does_not_count() -> None:
    assert reduced(hits_at(*A, *B), but="/a.") == [*B]


def test_process_of_its_own_has_points_of_its_own() -> None:
    hits = [*hits_at(*A, instance="1"), *hits_at(*A, process="other", instance="2")]
    assert crash_states(hits, lambda _: True) == [
        ("worker", "job/1/a.before"),
        ("worker", "job/1/a.after"),
        ("other", "job/1/a.before"),
        ("other", "job/1/a.after"),
    ]
