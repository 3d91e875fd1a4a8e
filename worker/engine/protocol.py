"""What an engine does for us, in our own words: no Docker type leaves `worker.engine.docker_engine`.

EngineError
├── EngineUnavailable   nothing can be said or done now: try again later
│   └── EngineFailing   it answers, with an error of its own (5xx)
├── ImageMissing        it has no such image
└── EngineRefused       it said no to this request (4xx); its words say why
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

# The longest wait for an engine's answer to a change, in seconds. The change may be made all the same.
ACT_SECONDS = 10


class ContainerState(StrEnum):
    """A container as its engine sees it."""

    ABSENT = "absent"
    CREATED = "created"
    RUNNING = "running"
    FROZEN = "paused"
    EXITED = "exited"
    REMOVING = "removing"
    DEAD = "dead"


@dataclass(frozen=True)
class ContainerStatus:
    """What is there of one sandbox."""

    state: ContainerState
    # Only asked when there is no container: whether its volume is still there.
    leftovers: bool = False
    exit_code: int = 0
    oom_killed: bool = False
    # Port inside the container → published port.
    ports: dict[int, int] = field(default_factory=dict)
    # Of the container, or of the volume where only that is left.
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ContainerRequest:
    """All that a container is made from. Nothing in it is secret: `docker inspect` shows it."""

    name: str
    image: str
    command: list[str] | None
    env: dict[str, str]
    labels: dict[str, str]
    working_dir: str
    ports: list[int]
    address: str
    memory_bytes: int
    cpus: float
    pids: int
    capabilities: list[str]
    runtime: str | None
    # Whether the volume may hold files of its owner's: the sandbox was ready once.
    has_files: bool = True


@dataclass(frozen=True)
class ContainerSummary:
    """One of our containers in a listing."""

    name: str
    state: ContainerState
    labels: dict[str, str]
    # The id of the image that it was made from.
    image: str = ""


class EngineError(Exception):
    """The root of the tree."""


class EngineUnavailable(EngineError):
    """The engine does not answer: a node in trouble, not a failed request."""


class EngineFailing(EngineUnavailable):
    """The engine answers with an error of its own (5xx), whatever it was asked."""


class ImageMissing(EngineError):
    """The engine has no such image."""


class EngineRefused(EngineError):
    """The engine answered that this request can not be carried out, now or later."""


class Engine(Protocol):
    """One engine. Done twice is done once: "already so" and "not there" are successes (law 5).

    All methods raise EngineUnavailable and EngineRefused.
    """

    def read_id(self) -> str:
        """What tells this engine from all others, for as long as it keeps its data."""

    def observe(self, name: str) -> ContainerStatus:
        """What is there of the sandbox whose container and volume have this name."""

    def create(self, request: ContainerRequest, seconds: int = ACT_SECONDS) -> None:
        """Create the container and its volume; adopt one of that name with our labels, replace any other.

        Args:
            seconds: the longest that the engine may take for an answer. One that copies images needs more than others.

        Raises:
            ImageMissing: pull it first.
        """

    def pull(self, image: str) -> None:
        """Fetch an image, for as long as it makes progress.

        Raises:
            ImageMissing: no registry that can be reached has it.
        """

    def find_image(self, image: str) -> str | None:
        """The id of what an image's reference stands for here and now; None: it is not here."""

    def put_file(self, name: str, path: str, content: bytes) -> None:
        """Write a read-only file into a container, running or not."""

    def has_new_files(self, name: str) -> bool:
        """Whether the sandbox's folders have changed since its container was created, running or not."""

    def start(self, name: str) -> None:
        """Start a created or exited container."""

    def freeze(self, name: str) -> None:
        """Freeze a running container's processes."""

    def unfreeze(self, name: str) -> None:
        """Let a frozen container's processes go on."""

    def stop(self, name: str, seconds: int) -> None:
        """Ask a container to end and kill it after so many seconds."""

    def discard(self, name: str) -> None:
        """Remove the container and keep its volume."""

    def remove(self, name: str) -> None:
        """Remove the container and its volume."""

    def read_log(self, name: str, lines: int) -> str:
        """The container's last lines, both streams; empty when there is no container."""

    def list_containers(self, installation: str) -> list[ContainerSummary]:
        """Every container of this installation, in any state."""

    def list_volumes(self, installation: str) -> list[str]:
        """The names of every volume of this installation."""

    def list_unlabelled_volumes(self) -> list[str]:
        """The names of the volumes without any installation's label.

        Docker makes one itself where the volume of a container that it is to create is gone: a request to create that
        it carries out late, after the sandbox was removed, leaves such a volume behind.
        """

    def follow(self, installation: str) -> Iterator[str]:
        """Subscribe now; the names of this installation's containers as they change from now on, until `close`.

        What this engine object starts, freezes and unfreezes is not told: whoever calls it looks by himself.
        """

    def close(self) -> None:
        """End `follow` and every connection, from any thread."""
