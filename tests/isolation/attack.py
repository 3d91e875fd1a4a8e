"""One attack: what is tried, where, what must come of it, and the control that shows that the probe works."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# A place and a file of probes.
Batch = tuple[str, str]


@dataclass(frozen=True)
class Try:
    """A function of a probe file, run at a place.

    Args:
        place: `A`, `A2` (sandboxes of alice), `B` (of bob): inside, as the image's user; `plain`, `peer`: containers of
            the same image on the engine's default network, as root, without the service's options; `host`: this
            machine, as root; `other user`: this machine, as a user without rights; `lan`: another machine.
        function: `file.function` of `tests/isolation/probes`.
        arguments: of the function; `$name` in a text stands for a fact of the scene.
        then: decides in this one's place, once it has run, for example whether a datagram has arrived.
    """

    place: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    then: "Try | None" = None

    @property
    def batch(self) -> Batch:
        """The tries of one batch are run by one program."""
        return self.place, self.function.partition(".")[0]

    def __str__(self) -> str:
        values = ", ".join(f"{value}" for value in self.arguments.values() if isinstance(value, str | int))
        return f"{self.place}: {self.function}({values[:70]})"


@dataclass(frozen=True)
class Attack:
    """An attack that must be blocked.

    Args:
        group: of the report.
        name: what the attacker does.
        probe: reaches its aim only if the boundary has a hole.
        control: the same where it is allowed; it must reach its aim in the same run.
    """

    group: str
    name: str
    probe: Try
    control: Try

    @property
    def id(self) -> str:
        """The name of its test."""
        return f"{self.group}: {self.name}"


@dataclass(frozen=True)
class Outcome:
    """Whether a try reached its aim."""

    reached: bool
    evidence: str


def at(place: str, function: str, then: Try | None = None, /, **arguments: Any) -> Try:
    """A try, with its arguments by name."""
    return Try(place, function, arguments, then)
