"""An engine in memory, with its agent servers; `tests/worker/engine/contract` checks it against the real one."""

import copy
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import httpx

from shared.clock import now
from shared.container_logs.printed_text import PrintedLog
from shared.ids import new_id
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.container import FakeContainer, Follower, give_back, printed
from worker.engine.docker_engine import FOLDERS, IDENTIFYING_LABELS, INSTALLATION_LABEL
from worker.engine.protocol import (
    ACT_SECONDS,
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    ContainerSummary,
    DiskKind,
    EngineFailing,
    EngineRefused,
    EngineUnavailable,
    ImageMissing,
    NetworkRequest,
)

IMAGE = "agent-workspace/sandbox:test"
# Actions of an engine object that its own follower does not report.
OWN = ("start", "pause", "unpause")


class FakeEngine:
    """Implementation of `worker.engine.protocol.Engine` in memory. `calls` records every call."""

    def __init__(self) -> None:
        self.id = new_id()
        self.containers: dict[str, FakeContainer] = {}
        self.volumes: dict[str, dict[str, str]] = {}
        # Volumes that other containers use, too: they are not removed.
        self.shared_volumes: set[str] = set()
        self.images = {IMAGE}
        self.pullable: set[str] = set()
        self.known_runtimes = frozenset({"runc"})
        self.free: int | None = None
        self.calls: list[tuple[str, str]] = []
        # Functions called before a verb is executed, by verb: tests force interleavings with them.
        self.before: dict[str, Callable[[str], None]] = {}
        # Behavior of containers at start: None: healthy; a number: exit with this code; "never": never healthy.
        self.at_boot: int | str | None = None
        # Containers whose agent servers do not respond.
        self.silent: set[str] = set()
        # Number of requests that another server answers at a container's address, and the status of its responses.
        self.impostors, self.impostor_status = Counter[str](), 401
        # Called with the container's name for each request to an agent server.
        self.requested: Callable[[str], None] = lambda _name: None
        # Number of calls by verb that are refused (4xx), and that fail (5xx).
        self.refuse: dict[str, int] = {}
        self.fail: dict[str, int] = {}
        self.down = False
        # Containers whose disks reject writes, until they are stopped.
        self.failed_disks: set[str] = set()
        # Agent servers by container. Their state is on the volume.
        self.servers: dict[str, FakeAgentServer] = {}
        self.networks: dict[str, NetworkRequest] = {}
        self._addresses = itertools.count(1)
        self._lock = threading.RLock()
        self._subscribers: list[Follower] = []

    def connect(self) -> "FakeEngine":
        return copy.copy(self)

    def read_id(self) -> str:
        self._enter("read_id", "")
        return self.id

    def runtimes(self) -> frozenset[str]:
        return self.known_runtimes

    def disk_kind(self) -> DiskKind:
        return DiskKind.PLAIN

    def list_failed_disks(self) -> frozenset[str]:
        return frozenset(self.failed_disks)

    def free_bytes(self) -> int | None:
        return self.free

    def observe(self, name: str) -> ContainerStatus:
        self._enter("observe", name)
        with self._lock:
            give_back(self.containers, name)
            if (found := self.containers.get(name)) is None:
                labels = self.volumes.get(name)
                return ContainerStatus(ContainerState.ABSENT, has_volume=labels is not None, labels=dict(labels or {}))
            return found.status

    def create(self, request: ContainerRequest, seconds: int = ACT_SECONDS) -> None:
        self._enter("create", request.name)
        with self._lock:
            if not (request.has_files or INSTALLATION_LABEL in self.volumes.get(request.name, request.labels)):
                self._destroy(request.name)
                del self.volumes[request.name]
            self.volumes.setdefault(request.name, request.labels)
            if request.image not in self.images:
                raise ImageMissing(f"No such image: {request.image}")
            found = self.containers.get(request.name)
            if request.runtime not in {None, *self.known_runtimes}:
                raise EngineRefused(f"Unknown runtime specified {request.runtime}")
            labels = found.request.labels if found is not None else {}
            if found is not None and all(labels.get(key) == request.labels.get(key) for key in IDENTIFYING_LABELS):
                return
            self._destroy(request.name)
            self.servers.setdefault(request.name, FakeAgentServer())
            self.containers[request.name] = FakeContainer(request)

    def pull(self, image: str) -> None:
        self._enter("pull", image)
        if image not in self.pullable:
            raise ImageMissing(f"pull access denied for {image}")
        self.images.add(image)

    def find_image(self, image: str) -> str | None:
        self._enter("find_image", image)
        return image if image in self.images else None

    def put_file(self, name: str, path: str, content: bytes) -> None:
        self._enter("put_file", name)
        self._get(name).files[path] = content
        if path.startswith(tuple(FOLDERS)):
            self.servers[name].files[path] = content  # on the volume

    def has_new_files(self, name: str) -> bool:
        self._enter("has_new_files", name)
        self._get(name)
        server = self.servers.get(name)
        return server is not None and bool(server.conversations or server.commands or server.files)

    def start(self, name: str) -> None:
        self._enter("start", name)
        with self._lock:
            found = self.containers.get(name)
            if found is None or found.state not in (ContainerState.CREATED, ContainerState.EXITED):
                return
            found.require_network()
            found.address = f"172.17.{next(self._addresses)}.2"
            found.state, found.exit_code, found.oom_killed = ContainerState.RUNNING, 0, False
            found.started_at = now()
            found.log.append("the last line")
            self._publish(found, "start")
            if isinstance(self.at_boot, int):
                found.state, found.exit_code = ContainerState.EXITED, self.at_boot
                self._publish(found, "die")

    def pause(self, name: str) -> None:
        self._enter("pause", name)
        self._change(name, [ContainerState.RUNNING], ContainerState.PAUSED, "pause")

    def unpause(self, name: str) -> None:
        self._enter("unpause", name)
        self._change(name, [ContainerState.PAUSED], ContainerState.RUNNING, "unpause")

    def stop(self, name: str, seconds: int) -> None:
        self._enter("stop", name)
        self.failed_disks.discard(name)
        self._change(name, [ContainerState.RUNNING, ContainerState.PAUSED], ContainerState.EXITED, "die")

    def remove_container(self, name: str) -> None:
        self._enter("remove_container", name)
        with self._lock:
            self._destroy(name)

    def remove(self, name: str) -> None:
        self._enter("remove", name)
        with self._lock:
            self._destroy(name)
        # The real engine needs a second call for the volume, too.
        if "remove_volume" in self.before:
            self.before["remove_volume"](name)
        with self._lock:
            if name not in self.shared_volumes:
                self.volumes.pop(name, None)
                self.servers.pop(name, None)

    def read_log(self, name: str) -> PrintedLog:
        self._enter("read_log", name)
        with self._lock:
            log = self.containers[name].log if name in self.containers else []
            return printed(*log)

    def list_containers(self, installation: str) -> list[ContainerSummary]:
        self._enter("list_containers", "")
        with self._lock:
            return [
                found.summary
                for found in self.containers.values()
                if found.request.labels.get(INSTALLATION_LABEL) == installation
            ]

    def list_volumes(self, installation: str) -> list[str]:
        self._enter("list_volumes", "")
        with self._lock:
            return [name for name, labels in self.volumes.items() if labels.get(INSTALLATION_LABEL) == installation]

    def list_unlabelled_volumes(self) -> list[str]:
        self._enter("list_unlabelled_volumes", "")
        with self._lock:
            return [name for name, labels in self.volumes.items() if INSTALLATION_LABEL not in labels]

    def ensure_network(self, request: NetworkRequest) -> None:
        self._enter("ensure_network", request.name)
        with self._lock:
            if self.networks.setdefault(request.name, request) != request:
                raise EngineRefused("the network has other addresses")

    def follow(self, installation: str) -> Iterator[str]:
        self._enter("follow", "")
        follower = Follower(self, installation)
        with self._lock:
            self._subscribers.append(follower)
        return iter(follower.names.get, None)

    def close(self) -> None:
        self._enter("close", "")
        for follower in self._subscribers:
            if follower.owner is self:
                follower.names.put(None)

    def verbs(self, *, of: str = "") -> list[str]:
        """Return the verbs of the calls that change something, in order."""
        quiet = ("observe", "has_", "read_", "list_", "ensure_")
        return [verb for verb, name in self.calls if not verb.startswith(quiet) and of in name]

    def agent_servers(self) -> httpx.Client:
        """Return a client that reaches the containers' agent servers as through a door."""
        return httpx.Client(transport=httpx.MockTransport(self.respond))

    def respond(self, request: httpx.Request) -> httpx.Response:
        """Return the response of the agent server at the address in the request's path."""
        _, address, _, path = request.url.raw_path.decode().split("/", 3)
        with self._lock:
            found = next((c for c in self.containers.values() if c.address == address), None)
        if found is None or found.state != ContainerState.RUNNING or self.at_boot == "never":
            raise httpx.ConnectError("refused", request=request)
        self.requested(found.request.name)
        if found.request.name in self.silent:
            raise httpx.ReadTimeout("timed out", request=request)
        if self.impostors[found.request.name] > 0:
            self.impostors[found.request.name] -= 1
            return httpx.Response(self.impostor_status, json={"detail": "Unauthorized"})
        server = self.servers.setdefault(found.request.name, FakeAgentServer())
        if found.boot_key is None:
            server.session_key = found.session_key
        elif server.boot_key is None:
            server.boot_key, server.is_dormant = found.boot_key, True
        request.url = request.url.copy_with(raw_path=f"/{path}".encode())
        return server.respond(request)

    def _enter(self, verb: str, name: str) -> None:
        self.calls.append((verb, name))
        if verb in self.before:
            self.before[verb](name)
        if self.down:
            raise EngineUnavailable("ConnectionError")
        if self.refuse.get(verb, 0) > 0:
            self.refuse[verb] -= 1
            raise EngineRefused(f"{verb} refused")
        if self.fail.get(verb, 0) > 0:
            self.fail[verb] -= 1
            raise EngineFailing(f"status 500: {verb} failed")

    def _get(self, name: str) -> FakeContainer:
        if name not in self.containers:
            raise EngineRefused(f"No such container: {name}")
        return self.containers[name]

    def _change(self, name: str, before: Sequence[ContainerState], after: ContainerState, event: str) -> None:
        with self._lock:
            if (found := self.containers.get(name)) is not None and found.state in before:
                self.containers[name] = replace(found, state=after)
                self._publish(found, event)

    def _destroy(self, name: str) -> None:
        if (found := self.containers.pop(name, None)) is None:
            return
        if found.state in (ContainerState.RUNNING, ContainerState.PAUSED):
            self._publish(found, "die")
        self._publish(found, "destroy")

    def _publish(self, container: FakeContainer, event: str) -> None:
        for follower in self._subscribers:
            if container.request.labels.get(INSTALLATION_LABEL) != follower.installation:
                continue
            if follower.owner is not self or event not in OWN:
                follower.names.put(container.request.name)
