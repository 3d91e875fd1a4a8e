"""Two running containers of one sandbox are seen at the first look; what may overlap is let pass."""

from collections.abc import Callable, Collection, Iterator

import pytest

from tests.drills.chaos.watch import find_doubles

BOTH = ["node-a", "node-b"]


def look(*listings: dict[str, set[str]], ready: Collection[Collection[str]] = (BOTH, BOTH)) -> dict[str, str]:
    """One look, with what the nodes list and which are READY as time passes."""
    told = {node: iter([listing.get(node, set()) for listing in listings]) for node in BOTH}
    states: Iterator[Collection[str]] = iter(ready)
    ask: Callable[[str], Collection[str]] = lambda node: next(told[node])  # noqa: E731 - shorter than a function
    return dict(find_doubles(lambda: next(states), ask))


DOUBLE = {"node-a": {"s"}, "node-b": {"s", "t"}}


def test_double_is_found_at_once() -> None:
    assert look(DOUBLE, DOUBLE) == {"s": "node-a and node-b"}


@pytest.mark.parametrize(
    "listings",
    [
        ({"node-a": {"s"}, "node-b": {"t"}},),
        # Gone from the first by the time that it was seen on the second: it has moved.
        (DOUBLE, {"node-b": {"s"}}),
        (DOUBLE, {"node-a": {"s"}}),
    ],
)
def test_sandbox_on_one_node_at_a_time_passes(listings: tuple[dict[str, set[str]], ...]) -> None:
    assert look(*listings) == {}


@pytest.mark.parametrize("ready", [(["node-a"], BOTH), (BOTH, ["node-a"]), (BOTH, [])])
def test_container_on_a_node_that_is_not_ready_passes(ready: Collection[Collection[str]]) -> None:
    assert look(DOUBLE, DOUBLE, ready=ready) == {}
