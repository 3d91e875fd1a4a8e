"""The Docker Engine. Only this file and `docker_client` import `docker`; each call has a client to itself."""

import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from typing import Any

import urllib3
from docker import APIClient
from docker.errors import APIError, NotFound

from shared.observability import failpoints
from worker.engine.docker_client import CONFLICT, WORKSPACE, TimedClient, already, host_config, translated
from worker.engine.docker_formats import STATES, pack_file, read_observed, read_time
from worker.engine.own_events import OwnEventFilter
from worker.engine.protocol import (
    ACT_SECONDS,
    ContainerRequest,
    ContainerState,
    ContainerStatus,
    ContainerSummary,
    EngineFailing,
    EngineRefused,
    EngineUnavailable,
    ImageMissing,
)
from worker.leasing.watched_work import require_awaited

INSTALLATION_LABEL = "agent-workspace.installation"
SANDBOX_LABEL = "agent-workspace.sandbox"
# Empty where it was made for the warm pool.
OWNER_LABEL = "agent-workspace.owner"
# Whose container it is. The other labels say what was so when it was made: a member of the warm pool had no owner.
IDENTIFYING_LABELS = (INSTALLATION_LABEL, SANDBOX_LABEL)
# Those whose contents tell whether a sandbox was used: images have them, and no agent server changes them at its boot.
FOLDERS = [f"{WORKSPACE}/{name}" for name in ("project", "conversations", "bash_events")]

# The longest waits for an answer, in seconds: to a question about one thing, to one about all, for the next line of a
# pull's progress, and for the next event before the stream of events is opened anew.
READ_SECONDS = 5
LIST_SECONDS = 10
PULL_SECONDS = 120
FOLLOW_SECONDS = 60
# What an engine says, with whatever status, of an image that no later pull can fetch.
NO_IMAGE = ("denied", "unauthorized", "manifest unknown", "not found", "no such host")

# What happens to a container that may change what we know of it.
EVENTS = ["start", "die", "oom", "pause", "unpause", "destroy"]


class DockerEngine:
    """The engine at one address; see `worker.engine.protocol.Engine` for its promises."""

    def __init__(self, base_url: str) -> None:
        """Connect lazily to `base_url`, for example unix:///var/run/docker.sock."""
        self._base_url = base_url
        self._version: str | None = None
        # Clients that no call uses now.
        self._idle: deque[APIClient] = deque()
        self._follower: APIClient | None = None
        self._stream: Any = None
        self._own = OwnEventFilter()

    def read_id(self) -> str:
        """The engine's id and data root (Docker's `GET /info`): older engines of one machine share their id."""
        # A node whose worker waits long for one answer would be taken for lost.
        with self._api(READ_SECONDS) as api:
            found = api.info()
        return f"{found['ID']} {found['DockerRootDir']}"

    def observe(self, name: str) -> ContainerStatus:
        """What is there of one sandbox."""
        with self._api(READ_SECONDS) as api:
            try:
                found = api.inspect_container(name)
            except NotFound:
                volume = _find_volume(api, name)
                labels = (volume or {}).get("Labels") or {}
                return ContainerStatus(ContainerState.ABSENT, leftovers=volume is not None, labels=labels)
        return read_observed(found)

    def create(self, request: ContainerRequest, seconds: int = ACT_SECONDS) -> None:
        """Create, adopt or replace the container."""
        with self._api(seconds) as api:
            try:
                self._create(api, request)
            except APIError as error:
                if error.status_code != CONFLICT:
                    raise
                self._adopt_or_replace(api, request)

    @failpoints.watched("engine.pull")
    def pull(self, image: str) -> None:
        """Fetch an image."""
        repository, _, tag = image.partition("@") if "@" in image else image.rpartition(":")
        if not repository or "/" in tag:
            repository, tag = image, "latest"
        try:
            # What goes wrong once it has begun is told in the midst of its progress.
            with translated(), closing(self._connect()) as api:
                api.timeout = PULL_SECONDS
                for told in api.pull(repository, tag=tag, stream=True, decode=True):
                    if "error" in told:
                        raise ImageMissing(told["error"][:500])
        except EngineFailing as error:
            # The engine answers so where its registry fails, too: only its words tell what no later pull can fetch.
            if any(words in str(error).lower() for words in NO_IMAGE):
                raise ImageMissing(str(error)) from None
            raise
        except EngineRefused as error:
            raise ImageMissing(str(error)) from None

    def find_image(self, image: str) -> str | None:
        """The id of an image that is here."""
        with self._api(READ_SECONDS) as api:
            try:
                return str(api.inspect_image(image)["Id"])  # type: ignore[no-untyped-call]
            except NotFound:
                return None

    @failpoints.watched("engine.put_file")
    def put_file(self, name: str, path: str, content: bytes) -> None:
        """Write a read-only file into the container."""
        with self._api(ACT_SECONDS) as api:
            api.put_archive(name, "/", pack_file(path.lstrip("/"), content))

    def has_new_files(self, name: str) -> bool:
        """Compare the folders' times with the container's; a folder that is missing says nothing."""
        with self._api(READ_SECONDS) as api:
            created = read_time(api.inspect_container(name)["Created"])
            times = [_time_of(api, name, folder) for folder in FOLDERS]
        return any(time is not None and time > created for time in times)

    @failpoints.watched("engine.start")
    def start(self, name: str) -> None:
        """Start the container."""
        with self._api(ACT_SECONDS) as api, already(), self._own.expecting(name, "start"):
            api.start(name)

    @failpoints.watched("engine.freeze")
    def freeze(self, name: str) -> None:
        """Freeze the container."""
        with self._api(ACT_SECONDS) as api, already(), self._own.expecting(name, "pause"):
            api.pause(name)

    @failpoints.watched("engine.unfreeze")
    def unfreeze(self, name: str) -> None:
        """Unfreeze the container."""
        try:
            with self._api(ACT_SECONDS) as api, already(), self._own.expecting(name, "unpause"):
                api.unpause(name)
        except EngineFailing:
            # "Not paused" is a 500, told apart from a real one by its words only, or by looking.
            if self.observe(name).state == ContainerState.FROZEN:
                raise

    @failpoints.watched("engine.stop")
    def stop(self, name: str, seconds: int) -> None:
        """Stop the container."""
        with self._api(ACT_SECONDS) as api, already():
            # The client waits for the container's grace as well.
            api.stop(name, timeout=seconds)

    @failpoints.watched("engine.discard")
    def discard(self, name: str) -> None:
        """Remove the container."""
        with self._api(ACT_SECONDS) as api, already():
            api.remove_container(name, force=True, v=True)

    def remove(self, name: str) -> None:
        """Remove the container and its volume."""
        self.discard(name)
        self._remove_volume(name)

    def read_log(self, name: str, lines: int) -> str:
        """The container's last lines."""
        with self._api(READ_SECONDS) as api:
            try:
                text: bytes = api.logs(name, tail=lines)
            except NotFound:
                return ""
        return text.decode(errors="replace").replace("\0", "")

    def list_containers(self, installation: str) -> list[ContainerSummary]:
        """Every container of this installation."""
        wanted = {"label": [f"{INSTALLATION_LABEL}={installation}"]}
        with self._api(LIST_SECONDS) as api:
            found = api.containers(all=True, filters=wanted)
        return [
            ContainerSummary(item["Names"][0].lstrip("/"), STATES[item["State"]], item["Labels"], item["ImageID"])
            for item in found
            if item["Names"]
        ]

    def list_volumes(self, installation: str) -> list[str]:
        """Every volume of this installation."""
        wanted = {"label": [f"{INSTALLATION_LABEL}={installation}"]}
        with self._api(LIST_SECONDS) as api:
            found = api.volumes(filters=wanted)
        return [item["Name"] for item in found.get("Volumes") or []]

    def list_unlabelled_volumes(self) -> list[str]:
        """Every volume without an installation's label."""
        with self._api(LIST_SECONDS) as api:
            found = api.volumes()
        volumes = found.get("Volumes") or []
        return [item["Name"] for item in volumes if INSTALLATION_LABEL not in (item["Labels"] or {})]

    def follow(self, installation: str) -> Iterator[str]:
        """The names of containers as they change behind our back."""
        wanted = {"type": ["container"], "event": EVENTS, "label": [f"{INSTALLATION_LABEL}={installation}"]}
        if self._follower is None:
            self._follower = self._connect()
        self._follower.timeout = FOLLOW_SECONDS
        with translated():
            # The engine answers before it listens: what happens in between, it tells from its memory.
            self._stream = self._follower.events(decode=True, filters=wanted, since=int(time.time()))
        return self._names(self._stream)

    def close(self) -> None:
        """End `follow` and every connection, from any thread."""
        if self._stream is not None:
            self._stream.close()
        for client in (*self._idle, self._follower):
            if client is not None:
                client.close()

    def _names(self, stream: Any) -> Iterator[str]:
        with translated(), suppress(urllib3.exceptions.ReadTimeoutError):
            for event in stream:
                name = event["Actor"]["Attributes"]["name"]
                if not self._own.are_told(name, event["Action"]):
                    yield name

    @contextmanager
    def _api(self, seconds: int) -> Iterator[APIClient]:
        """A client that no other call uses meanwhile, and that waits so long for each answer."""
        with translated():
            try:
                client = self._idle.pop()
            except IndexError:
                client = self._connect()
            client.timeout = seconds
            try:
                yield client
            finally:
                self._idle.append(client)

    def _connect(self) -> APIClient:
        with translated():
            client = TimedClient(self._base_url, version=self._version or "auto", timeout=READ_SECONDS)
        self._version = client.api_version
        return client

    def _create(self, api: APIClient, request: ContainerRequest) -> None:
        if not _create_volume(api, request) and not request.has_files:
            require_awaited()
            self.remove(request.name)
            _create_volume(api, request)
        require_awaited()
        with failpoints.around("engine.create_container"):
            api.create_container(
                request.image,
                request.command,
                name=request.name,
                environment=request.env,
                labels=request.labels,
                working_dir=request.working_dir,
                ports=request.ports,
                host_config=host_config(api, request),
            )

    def _adopt_or_replace(self, api: APIClient, request: ContainerRequest) -> None:
        found = self.observe(request.name)
        if found.state == ContainerState.ABSENT:
            raise EngineUnavailable("the container is still being made, for a request whose answer was lost")
        if all(found.labels.get(key) == request.labels.get(key) for key in IDENTIFYING_LABELS):
            return
        require_awaited()
        self.discard(request.name)
        self._create(api, request)

    @failpoints.watched("engine.remove_volume")
    def _remove_volume(self, name: str) -> None:
        with self._api(ACT_SECONDS) as api, already():
            api.remove_volume(name)


def _find_volume(api: APIClient, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = api.inspect_volume(name)
    except NotFound:
        return None
    return found


def _time_of(api: APIClient, name: str, path: str) -> datetime | None:
    """When a path in a container was changed; its content, which follows in the answer, is not read."""
    try:
        _, found = api.get_archive(name, path)
    except NotFound:
        return None
    return read_time(found["mtime"])


def _create_volume(api: APIClient, request: ContainerRequest) -> bool:
    """Create the volume; whether it has labels: one that is there already keeps those that it has, or none."""
    with failpoints.around("engine.create_volume"):
        volume = api.create_volume(request.name, labels=request.labels)
    return INSTALLATION_LABEL in (volume["Labels"] or {})
