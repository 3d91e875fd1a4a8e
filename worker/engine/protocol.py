"""Protocol of a container engine, without Docker's types: those stay in `worker.engine.docker_engine`.

EngineError
├── EngineUnavailable   no result now: retry later
│   └── EngineFailing   the engine responds with an error of its own (5xx)
├── ImageMissing        the engine has no such image
└── EngineRefused       the engine rejects this request (4xx); the text says why
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from shared.container_logs.printed_text import PrintedLog

# Timeout of a change, in seconds. The engine may make the change after the timeout.
ACT_SECONDS = 10


class ContainerState(StrEnum):
    ABSENT = "absent"
    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    EXITED = "exited"
    REMOVING = "removing"
    DEAD = "dead"


class DiskKind(StrEnum):
    """What a node's sandboxes store their files on."""

    # A file system of its own for each sandbox, with a limit of bytes and inodes.
    IMAGE = "image"
    # A volume on the engine's disk, without limit.
    PLAIN = "plain"


@dataclass(frozen=True)
class ContainerStatus:
    """Observed state of a sandbox's container and volume."""

    state: ContainerState
    # Whether the volume exists. Only read if there is no container.
    has_volume: bool = False
    exit_code: int = 0
    oom_killed: bool = False
    # Address in the sandboxes' network, while the container runs or is paused.
    address: str = ""
    # Whether it publishes ports on its node: only containers from before decision 54 do.
    is_published: bool = False
    # Labels of the container, or of the volume if there is no container.
    labels: dict[str, str] = field(default_factory=dict)
    # Names of its networks, and its address in each; empty if it does not run.
    networks: dict[str, str] = field(default_factory=dict)
    # The engine's id of the container. The next container with its name has another id.
    container_id: str = ""
    # When it was last started, by the clock of the engine's machine; year 1: never. None: there is no container.
    started_at: datetime | None = None
    # Whether its last start failed because the engine has removed its network, and perhaps made another of that name.
    has_lost_network: bool = False

    @property
    def text(self) -> str:
        """The observed state in words."""
        return f"the container is {self.state}" + (", and its volume is there" if self.has_volume else "")


@dataclass(frozen=True)
class NetworkRequest:
    """The network of this installation's containers on an engine: a bridge without traffic between its containers."""

    name: str
    bridge: str
    # An IPv4 network; the first address is the engine's machine.
    subnet: str
    gateway: str
    labels: dict[str, str]


@dataclass(frozen=True)
class NetworkEndpoint:
    name: str
    # The address of `host.docker.internal`.
    host_address: str
    # Name servers; a container without any reaches none.
    resolvers: tuple[str, ...] = ()
    # URL of the proxy for containers whose egress has host names, and what they reach without it.
    proxy: str = ""
    direct: tuple[str, ...] = ()


@dataclass(frozen=True)
class ContainerRequest:
    """Parameters of a new container. They contain no secrets: `docker inspect` shows them."""

    name: str
    image: str
    command: list[str] | None
    env: dict[str, str]
    labels: dict[str, str]
    working_dir: str
    memory_bytes: int
    cpus: float
    pids: int
    capabilities: list[str]
    runtime: str | None
    # Whether the volume may contain files of the owner: true if the sandbox was ever ready.
    has_files: bool = True
    # None: the engine's own bridge, with its defaults.
    network: NetworkEndpoint | None = None
    # Size of the disk of its files; 0: no limit. A node without disk images has no limit either.
    disk_bytes: int = 0
    # Options of the engine's volume driver.
    volume_options: dict[str, str] | None = None


@dataclass(frozen=True)
class ContainerSummary:
    """A container of this installation in a list."""

    name: str
    state: ContainerState
    labels: dict[str, str]
    # Id of the container's image.
    image: str = ""
    # Names of its networks, and its address in each; empty if it does not run.
    networks: dict[str, str] = field(default_factory=dict)
    # Whether it publishes ports on its node, while it runs.
    is_published: bool = False


class EngineError(Exception):
    """Base class of the engine's errors."""


class EngineUnavailable(EngineError):
    """The engine does not respond: the node has a problem, not the request."""


class EngineFailing(EngineUnavailable):
    """The engine responds with an error of its own (5xx) that does not depend on the request."""


class ImageMissing(EngineError):
    """The engine has no such image."""


class EngineRefused(EngineError):
    """The engine rejects this request, now and later."""


def has_responded(error: EngineError) -> bool:
    """Whether the engine has responded, with an error."""
    return isinstance(error, EngineRefused | EngineFailing)


class Engine(Protocol):
    """One engine. All methods are idempotent: "already so" and "not found" are success (law 5).

    All methods raise EngineUnavailable and EngineRefused.
    """

    def read_id(self) -> str:
        """Return a unique id of this engine, which is stable as long as the engine keeps its data."""

    def runtimes(self) -> frozenset[str]:
        """Return the names of the container runtimes that the engine has."""

    def disk_kind(self) -> DiskKind:
        """Return what new sandboxes store their files on if a disk size is requested."""

    def free_bytes(self) -> int | None:
        """Return the free space of the disk with the engine's data; None if this machine does not have that disk."""

    def list_failed_disks(self) -> frozenset[str]:
        """List the names of the sandboxes whose disk rejects every write until their container is restarted.

        Disks on another machine, and plain volumes, are not listed.
        """

    def observe(self, name: str) -> ContainerStatus:
        """Return the observed state of the container and volume with this name."""

    def create(self, request: ContainerRequest, seconds: int = ACT_SECONDS) -> None:
        """Create the container and its volume; adopt a container of that name with the same labels, replace any other.

        Args:
            seconds: timeout of the engine's response. An engine that copies images needs more time than others.

        Raises:
            ImageMissing: the image must be pulled first.
        """

    def pull(self, image: str) -> None:
        """Fetch an image, for as long as the pull makes progress.

        Raises:
            ImageMissing: no reachable registry has the image.
        """

    def find_image(self, image: str) -> str | None:
        """Return the id of the image that a reference names on this engine; None if there is none."""

    def put_file(self, name: str, path: str, content: bytes) -> None:
        """Write a read-only file into a container, running or not."""

    def has_new_files(self, name: str) -> bool:
        """Whether the sandbox's folders have changed since its container was created, running or not."""

    def start(self, name: str) -> None:
        """Start a created or exited container.

        Raises:
            EngineFailing: the engine has removed its network; `observe` says so from now on.
        """

    def pause(self, name: str) -> None:
        """Pause a running container's processes; memory is kept."""

    def unpause(self, name: str) -> None:
        """Resume a paused container's processes."""

    def stop(self, name: str, seconds: int) -> None:
        """Terminate a container, and kill it after `seconds`."""

    def remove_container(self, name: str) -> None:
        """Remove the container and keep its volume."""

    def remove(self, name: str) -> None:
        """Remove the container and its volume."""

    def read_log(self, name: str) -> PrintedLog:
        """Return the container's last log lines of both streams, as printed; none if there is no container.

        Bounded in time and size (`worker.engine.log_stream`), whatever the container prints.
        """

    def list_containers(self, installation: str) -> list[ContainerSummary]:
        """List the containers of this installation in any state."""

    def list_volumes(self, installation: str) -> list[str]:
        """List the names of this installation's volumes."""

    def list_unlabelled_volumes(self) -> list[str]:
        """List the names of volumes without any installation's label.

        Docker creates such a volume if a container's volume is missing: a delayed create request that Docker executes
        after the sandbox was removed leaves one behind.
        """

    def ensure_network(self, request: NetworkRequest) -> None:
        """Create the network, or check that the existing one is as requested.

        Raises:
            EngineRefused: another network has its name, its addresses or its bridge.
        """

    def follow(self, installation: str) -> Iterator[str]:
        """Subscribe immediately, and yield the names of this installation's containers that change, until `close`.

        Starts, pauses and resumes by this engine object are not reported: their callers check the result themselves.
        """

    def close(self) -> None:
        """End `follow` and every connection, from any thread."""
