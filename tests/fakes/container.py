"""A container of the in-memory engine, and a subscriber to its events."""

import json
import queue
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from shared.container_logs.printed_text import PrintedLine, PrintedLog
from worker.engine.docker_engine import DISPLACED, SANDBOX_LABEL
from worker.engine.protocol import ContainerRequest, ContainerState, ContainerStatus, ContainerSummary, EngineFailing

# Docker's time of a start that has not happened.
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass
class FakeContainer:
    """One container, and the configuration of its agent server."""

    request: ContainerRequest
    state: ContainerState = ContainerState.CREATED
    exit_code: int = 0
    oom_killed: bool = False
    # Address in the sandboxes' network; empty before the first start.
    address: str = ""
    is_published: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    container_id: str = field(default_factory=lambda: uuid4().hex)
    started_at: datetime = NEVER
    # Whether its network was removed after its last stop, and whether a start has failed since.
    is_cut_off: bool = False
    has_lost_network: bool = False
    # Whether someone has disconnected it from its network; a start does not connect it again.
    is_disconnected: bool = False

    def require_network(self) -> None:
        """Fail a start without its network.

        Raises:
            EngineFailing: the network was removed.
        """
        self.has_lost_network = self.is_cut_off
        if self.is_cut_off:
            raise EngineFailing("network 06aa21be not found")

    @property
    def own_name(self) -> str:
        """The name of its sandbox, which something else may have given to another container."""
        sandbox_id = self.request.labels.get(SANDBOX_LABEL)
        return f"aw-{sandbox_id}" if sandbox_id else self.request.name

    @property
    def networks(self) -> dict[str, str]:
        """Its address in its network; empty while it does not run."""
        if self.is_disconnected:
            return {}
        running = self.state in (ContainerState.RUNNING, ContainerState.PAUSED)
        return {self.request.network.name if self.request.network else "bridge": self.address if running else ""}

    @property
    def status(self) -> ContainerStatus:
        """The container as it is observed."""
        return ContainerStatus(
            self.state,
            exit_code=self.exit_code,
            oom_killed=self.oom_killed,
            address=next(iter(self.networks.values()), ""),
            is_published=self.is_published,
            labels=dict(self.request.labels),
            networks=self.networks,
            container_id=self.container_id,
            started_at=self.started_at,
            has_lost_network=self.has_lost_network,
        )

    @property
    def summary(self) -> ContainerSummary:
        """The container as an item of a list of containers."""
        request = self.request
        return ContainerSummary(
            request.name, self.state, request.labels, request.image, self.networks, is_published=self.is_published
        )

    @property
    def session_key(self) -> str | None:
        """Key in its agent server's configuration; None if the server awaits deferred init."""
        keys = self._configuration.get("session_api_keys")
        return str(keys[0]) if keys else None

    @property
    def boot_key(self) -> str | None:
        """Key for the deferred init of its agent server; None if the server awaits none."""
        return str(self._configuration["secret_key"]) if self._configuration.get("deferred_init") else None

    @property
    def _configuration(self) -> dict[str, Any]:
        return next(map(json.loads, self.files.values()), {})


def give_back(containers: dict[str, FakeContainer], name: str) -> None:
    """Give a name back to the container of its sandbox, as the real engine does in an observation."""
    if (found := containers.get(name)) is not None and found.own_name != name:
        _rename(containers, found, found.own_name + (DISPLACED if found.own_name in containers else ""))
    own = [each for each in containers.values() if each.own_name == name]
    if name not in containers and len(own) == 1:
        _rename(containers, own[0], name)


def _rename(containers: dict[str, FakeContainer], container: FakeContainer, name: str) -> None:
    del containers[container.request.name]
    container.request = replace(container.request, name=name)
    containers[name] = container


@dataclass(frozen=True)
class Follower:
    """Subscriber to the names of changed containers; None ends the stream."""

    # The engine object through which it follows.
    owner: object
    installation: str
    names: queue.SimpleQueue[str | None] = field(default_factory=queue.SimpleQueue)


def printed(*lines: str) -> PrintedLog:
    """A log of these lines, one for each nanosecond from the start of 2026."""
    return PrintedLog([PrintedLine(f"2026-01-01T00:00:00.{number:09}Z", line) for number, line in enumerate(lines)])
