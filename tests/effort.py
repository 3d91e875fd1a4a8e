"""The amount of repeated and random work of tests: minimal in the inner loop, maximal at night.

It is set before test modules are imported, by pytest's options (`tests.selection`).
"""

import random
from collections.abc import Sequence
from enum import StrEnum
from itertools import product
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import hypothesis

Value = TypeVar("Value")


class Effort(StrEnum):
    """The effort of a test run: for `make unit`, for a change, or at night."""

    QUICK = "quick"
    CHANGE = "change"
    THOROUGH = "thorough"


_effort = Effort.CHANGE
_seed = 0


def set_effort(effort: Effort, seed: int) -> None:
    """Set the effort and the first seed of this process."""
    global _effort, _seed
    _effort, _seed = effort, seed


def choose(*, quick: Value, change: Value, thorough: Value) -> Value:
    """The value for the effort of this process: in `make unit`, for a change, or at night."""
    return {Effort.QUICK: quick, Effort.CHANGE: change, Effort.THOROUGH: thorough}[_effort]


def covering(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """All combinations of these values at night; otherwise the fewest in which each value occurs."""
    if is_thorough():
        return list(product(*axes))
    return [tuple(axis[number % len(axis)] for axis in axes) for number in range(max(map(len, axes)))]


def is_thorough() -> bool:
    """Whether tests run at night."""
    return _effort == Effort.THOROUGH


def first_seed() -> int:
    """The first seed of tests that iterate over seeds: 0, or at night the number in pytest's header."""
    return _seed


def new_seed() -> int:
    """A random seed, different from those of earlier runs."""
    return random.SystemRandom().randrange(1, 10**9)


def bounds(*, max_examples: int, **options: object) -> "hypothesis.settings":
    """Hypothesis's settings: the same examples for each change, others each night."""
    import hypothesis  # noqa: PLC0415 - few tests need it, and every process of the suite imports this module

    return hypothesis.settings(
        max_examples=choose(quick=max_examples, change=max_examples, thorough=max(200, max_examples)),
        derandomize=not is_thorough(),
        database=None,
        deadline=None,
        **options,  # type: ignore[arg-type]
    )
