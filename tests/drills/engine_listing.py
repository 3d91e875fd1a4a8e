"""Listings of all containers and volumes of an engine, whatever created them, by the docker command.

The module uses no code of the product, so a container that the product created without its label, or with a wrong
name, is listed too.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

INSTALLATION_LABEL = "agent-workspace.installation"
SANDBOX_LABEL = "agent-workspace.sandbox"
LABELS = (INSTALLATION_LABEL, SANDBOX_LABEL)
NAME_PREFIX = "aw-"
_LABEL_FIELDS = "\t".join(f'{{{{.Label "{label}"}}}}' for label in LABELS)
_INSPECTED = "{{.Name}}\t{{.State.Status}}"


class CommandLine(Protocol):
    """An engine's command line."""

    def docker(self, *arguments: str) -> str:
        """Run a docker command; return its output.

        Raises:
            AssertionError: the command failed.
        """


@dataclass(frozen=True)
class Container:
    """A container. `state` has Docker's values: `created`, `running`, `paused`, `exited`, `removing`, `dead`."""

    name: str
    state: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Volume:
    """A volume."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Holdings:
    """The containers and volumes of an engine at one moment."""

    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()

    def __add__(self, other: "Holdings") -> "Holdings":
        """The union with the holdings of another engine."""
        return Holdings(self.containers + other.containers, self.volumes + other.volumes)


def sandbox_name(sandbox_id: str) -> str:
    """The name of a sandbox's container and volume."""
    return NAME_PREFIX + sandbox_id


def list_holdings(engine: CommandLine, *, inspect: bool = False) -> Holdings:
    """List every container and volume of an engine.

    Args:
        inspect: read the state of each container with `docker inspect`. An engine whose disk was full lists outdated
            states.

    Raises:
        AssertionError: the engine does not respond, or a container was removed in between.
    """
    containers = list_containers(engine, "--all")
    if inspect and containers:
        states = _inspect_states(engine, [item.name for item in containers])
        containers = [Container(item.name, states[item.name], item.labels) for item in containers]
    return Holdings(tuple(containers), tuple(_list_volumes(engine)))


def list_containers(engine: CommandLine, *filters: str) -> list[Container]:
    """List the containers that `docker ps` shows with these arguments.

    Raises:
        AssertionError: the engine does not respond.
    """
    output = engine.docker("ps", "--no-trunc", *filters, "--format", f"{{{{.Names}}}}\t{{{{.State}}}}\t{_LABEL_FIELDS}")
    rows = [line.split("\t") for line in output.splitlines()]
    return [Container(name, state, _labels(values)) for name, state, *values in rows]


def _list_volumes(engine: CommandLine) -> list[Volume]:
    output = engine.docker("volume", "ls", "--format", f"{{{{.Name}}}}\t{_LABEL_FIELDS}")
    rows = [line.split("\t") for line in output.splitlines()]
    return [Volume(name, _labels(values)) for name, *values in rows]


def _inspect_states(engine: CommandLine, names: Iterable[str]) -> dict[str, str]:
    output = engine.docker("inspect", "--type", "container", "--format", _INSPECTED, *names)
    return {name.removeprefix("/"): state for name, state in (line.split("\t") for line in output.splitlines())}


def _labels(values: Iterable[str]) -> dict[str, str]:
    return {label: value for label, value in zip(LABELS, values, strict=True) if value}
