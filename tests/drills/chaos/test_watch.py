"""One check detects two running containers of one sandbox, and ignores permitted overlaps."""

from collections.abc import Callable, Collection, Iterator, Mapping

import pytest

from tests.drills.chaos.watch import find_doubles

BOTH = ["node-a", "node-b"]


def check_once(
    *listings: dict[str, set[str]], ready: Collection[Collection[str]] = (BOTH, BOTH)
) -> Mapping[str, str] | None:
    """Run one check, with the nodes' successive listings and the successive sets of READY nodes."""
    told = {node: iter([listing.get(node, set()) for listing in listings]) for node in BOTH}
    states: Iterator[Collection[str]] = iter(ready)
    send: Callable[[str], Collection[str]] = lambda node: next(told[node])  # noqa: E731 - shorter than a function
    return find_doubles(lambda: next(states), send)


DOUBLE = {"node-a": {"s"}, "node-b": {"s", "t"}}


def test_sandbox_on_two_nodes_is_detected_immediately() -> None:
    assert check_once(DOUBLE, DOUBLE) == {"s": "node-a and node-b"}


@pytest.mark.parametrize(
    "listings",
    [
        ({"node-a": {"s"}, "node-b": {"t"}},),
        # The container has left the first node before it is listed on the second: the sandbox has moved.
        (DOUBLE, {"node-b": {"s"}}),
        (DOUBLE, {"node-a": {"s"}}),
    ],
)
def test_sandbox_on_one_node_at_a_time_passes(listings: tuple[dict[str, set[str]], ...]) -> None:
    assert check_once(*listings) == {}


@pytest.mark.parametrize("ready", [(["node-a"], BOTH), (BOTH, ["node-a"]), (BOTH, [])])
def test_check_without_two_ready_nodes_does_not_count(ready: Collection[Collection[str]]) -> None:
    assert check_once(DOUBLE, DOUBLE, ready=ready) is None
