"""The description of an attack, and of the control that proves that its probe works."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# The place and the probe file of attempts that run together.
Batch = tuple[str, str]


@dataclass(frozen=True)
class Attempt:
    """A run of a probe function at a place.

    Args:
        place: `A`, `A2` (sandboxes of alice), `B` (of bob): inside, as the image's user; `plain`, `peer`: containers of
            the same image on the engine's default network, as root, without the service's options; `host`: this
            machine, as root; `other user`: this machine, as an unprivileged user; `lan`: another machine.
        function: `file.function` of `tests/isolation/probes`.
        arguments: the function's arguments, in which `$name` stands for a fact of the testbed.
        then: another attempt, which runs afterwards and decides the outcome, for example whether a datagram arrived.
    """

    place: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    then: "Attempt | None" = None

    @property
    def batch(self) -> Batch:
        """The batch of the attempt. One program runs all attempts of a batch."""
        return self.place, self.function.partition(".")[0]

    def __str__(self) -> str:
        values = ", ".join(f"{value}" for value in self.arguments.values() if isinstance(value, str | int))
        return f"{self.place}: {self.function}({values[:70]})"


@dataclass(frozen=True)
class Attack:
    """An attack that must be blocked.

    Args:
        group: the group in the report.
        name: the attacker's action.
        probe: succeeds only if the boundary has a hole.
        control: the same probe where it is allowed, which must succeed in the same run.
    """

    group: str
    name: str
    probe: Attempt
    control: Attempt

    @property
    def id(self) -> str:
        """The name of its test."""
        return f"{self.group}: {self.name}"


@dataclass(frozen=True)
class Outcome:
    """Whether an attempt succeeded."""

    reached: bool
    evidence: str


def at(place: str, function: str, then: Attempt | None = None, /, **arguments: Any) -> Attempt:
    """An attempt, with its arguments by name."""
    return Attempt(place, function, arguments, then)
