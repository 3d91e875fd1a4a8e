"""The Docker Engine. Only this file and `docker_client` import `docker`; each call has its own client."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from datetime import datetime
from typing import Any

import urllib3
from docker import APIClient
from docker.errors import APIError, NotFound

from shared.container_logs.printed_text import PrintedLog
from shared.observability import failpoints
from worker.engine import log_stream
from worker.engine.docker_client import (
    CONFLICT,
    WORKSPACE,
    ClientPool,
    find_object,
    host_config,
    idempotent,
    make_network,
    translated,
)
from worker.engine.docker_formats import names_lost_network, pack_file, read_observed, read_summary, read_time
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
    NetworkRequest,
)
from worker.lease_renewer import require_awaited

INSTALLATION_LABEL = "agent-workspace.installation"
SANDBOX_LABEL = "agent-workspace.sandbox"
# Empty if the container was created for the warm pool.
OWNER_LABEL = "agent-workspace.owner"
# Labels that identify a container's sandbox. The owner label holds the owner at creation: warm sandboxes have none.
IDENTIFYING_LABELS = (INSTALLATION_LABEL, SANDBOX_LABEL)
# Added to the name of a container whose own name is taken, until that of its sandbox is observed.
DISPLACED = "-displaced"
# Folders whose contents show whether a sandbox was used: images contain them, and agent servers don't write them at
# boot.
FOLDERS = [f"{WORKSPACE}/{name}" for name in ("project", "conversations", "bash_events")]

# Timeout of a read of one object, in seconds.
READ_SECONDS = 5
# Timeout of a list.
LIST_SECONDS = 10
# Timeout of each line of a pull's progress.
PULL_SECONDS = 120
# Timeout of the next event, after which the stream is reopened.
FOLLOW_SECONDS = 60
# Substrings of an engine's error texts, with any status, about an image that no later pull can fetch.
NO_IMAGE = ("denied", "unauthorized", "manifest unknown", "not found", "no such host")

# Container events that may change a sandbox's observed state. "oom" is left out, because a sandbox can cause any number
# of them: a container that ends for its memory also has a "die".
EVENTS = ["start", "die", "pause", "unpause", "destroy"]


class DockerEngine:
    """The engine at one address; `worker.engine.protocol.Engine` documents its methods."""

    def __init__(self, base_url: str) -> None:
        """Connect lazily to `base_url`, for example unix:///var/run/docker.sock."""
        self._clients = ClientPool(base_url, READ_SECONDS)
        self._follower: APIClient | None = None
        self._stream: Any = None
        self._own_events = OwnEventFilter()
        # Docker's `GET /info`, as last read.
        self.info: dict[str, Any] = {}

    def read_id(self) -> str:
        """Return the engine's id and data root (Docker's `GET /info`): older engines of one machine share their id."""
        # A short timeout: a node whose worker waits too long for this is marked lost.
        with self._clients.acquire(READ_SECONDS) as api:
            found = self.info = api.info()
        return f"{found['ID']} {found['DockerRootDir']}"

    def observe(self, name: str) -> ContainerStatus:
        with self._clients.acquire(READ_SECONDS) as api:
            try:
                found = api.inspect_container(name)
            except NotFound:
                volume = find_object(api.inspect_volume, name)
                labels = (volume or {}).get("Labels") or {}
                return ContainerStatus(ContainerState.ABSENT, has_volume=volume is not None, labels=labels)
        return read_observed(found)

    def create(self, request: ContainerRequest, seconds: int = ACT_SECONDS) -> None:
        with self._clients.acquire(seconds) as api:
            try:
                self._create(api, request)
            except APIError as error:
                if error.status_code != CONFLICT:
                    raise
                self._adopt_or_replace(api, request)

    @failpoints.around("engine.pull")
    def pull(self, image: str) -> None:
        repository, _, tag = image.partition("@") if "@" in image else image.rpartition(":")
        if not repository or "/" in tag:
            repository, tag = image, "latest"
        try:
            # The progress lines report errors that occur during the pull.
            with translated(), closing(self._clients.connect()) as api:
                api.timeout = PULL_SECONDS
                for line in api.pull(repository, tag=tag, stream=True, decode=True):
                    if "error" in line:
                        raise ImageMissing(line["error"][:500])
        except EngineFailing as error:
            # A failing registry has the same status: only the text shows that no later pull can fetch the image.
            if any(words in str(error).lower() for words in NO_IMAGE):
                raise ImageMissing(str(error)) from None
            raise
        except EngineRefused as error:
            raise ImageMissing(str(error)) from None

    def find_image(self, image: str) -> str | None:
        with self._clients.acquire(READ_SECONDS) as api:
            found = find_object(api.inspect_image, image)
        return None if found is None else str(found["Id"])

    @failpoints.around("engine.put_file")
    def put_file(self, name: str, path: str, content: bytes) -> None:
        # With a read-only root, the engine accepts a file only if the request names the volume.
        folder = WORKSPACE if path.startswith(f"{WORKSPACE}/") else "/"
        with self._clients.acquire(ACT_SECONDS) as api:
            api.put_archive(name, folder, pack_file(path.removeprefix(folder).lstrip("/"), content))

    def has_new_files(self, name: str) -> bool:
        """Compare the times of existing folders with the volume's, which may be older than its container."""
        with self._clients.acquire(READ_SECONDS) as api:
            created = read_time(api.inspect_volume(name)["CreatedAt"])
            times = [_time_of(api, name, folder) for folder in FOLDERS]
        return any(time is not None and time > created for time in times)

    @failpoints.around("engine.start")
    def start(self, name: str) -> None:
        with self._clients.acquire(ACT_SECONDS) as api, idempotent(), self._own_events.expect(name, "start"):
            try:
                api.start(name)
            except NotFound as error:
                if names_lost_network(str(error.explanation)):
                    raise EngineFailing(str(error.explanation)) from None
                raise

    @failpoints.around("engine.freeze")
    def pause(self, name: str) -> None:
        with self._clients.acquire(ACT_SECONDS) as api, idempotent(), self._own_events.expect(name, "pause"):
            api.pause(name)

    @failpoints.around("engine.unfreeze")
    def unpause(self, name: str) -> None:
        try:
            with self._clients.acquire(ACT_SECONDS) as api, idempotent(), self._own_events.expect(name, "unpause"):
                api.unpause(name)
        except EngineFailing:
            # "Not paused" is a 500, too. Only its text or an inspection distinguishes it from a failure.
            if self.observe(name).state == ContainerState.PAUSED:
                raise

    @failpoints.around("engine.stop")
    def stop(self, name: str, seconds: int) -> None:
        with self._clients.acquire(ACT_SECONDS) as api, idempotent():
            # The client adds the container's grace period to its timeout.
            api.stop(name, timeout=seconds)

    @failpoints.around("engine.discard")
    def remove_container(self, name: str) -> None:
        with self._clients.acquire(ACT_SECONDS) as api, idempotent():
            api.remove_container(name, force=True, v=True)

    def remove(self, name: str) -> None:
        self.remove_container(name)
        self._remove_volume(name)

    def read_log(self, name: str) -> PrintedLog:
        with self._clients.acquire(log_stream.MAX_SECONDS) as api:
            return api.read_log(name)

    def list_containers(self, installation: str) -> list[ContainerSummary]:
        wanted = {"label": [f"{INSTALLATION_LABEL}={installation}"]}
        with self._clients.acquire(LIST_SECONDS) as api:
            found = api.containers(all=True, filters=wanted)
        return [read_summary(item) for item in found if item["Names"]]

    def list_volumes(self, installation: str) -> list[str]:
        wanted = {"label": [f"{INSTALLATION_LABEL}={installation}"]}
        with self._clients.acquire(LIST_SECONDS) as api:
            found = api.volumes(filters=wanted)
        return [item["Name"] for item in found.get("Volumes") or []]

    def list_unlabelled_volumes(self) -> list[str]:
        with self._clients.acquire(LIST_SECONDS) as api:
            found = api.volumes(filters={"name": ["^aw-"]})
        volumes = found.get("Volumes") or []
        return [item["Name"] for item in volumes if INSTALLATION_LABEL not in (item["Labels"] or {})]

    def ensure_network(self, request: NetworkRequest) -> None:
        with self._clients.acquire(ACT_SECONDS) as api:
            make_network(api, request)

    def follow(self, installation: str) -> Iterator[str]:
        wanted = {"type": ["container"], "event": EVENTS, "label": [f"{INSTALLATION_LABEL}={installation}"]}
        if self._follower is None or self._follower.api_version != self._clients.version:
            self._close_follower()
            self._follower = self._clients.connect()
        self._follower.timeout = FOLLOW_SECONDS
        with translated():
            # The engine responds before it subscribes. `since` makes it replay the events in between.
            self._stream = self._follower.events(decode=True, filters=wanted, since=int(time.time()))
        return self._names(self._stream)

    def close(self) -> None:
        self._close_follower()
        self._clients.close()

    def _close_follower(self) -> None:
        if self._stream is not None:
            self._stream.close()
        if self._follower is not None:
            self._follower.close()

    def _names(self, stream: Any) -> Iterator[str]:
        with translated(), suppress(urllib3.exceptions.ReadTimeoutError):
            for event in stream:
                name = event["Actor"]["Attributes"]["name"]
                if not self._own_events.is_own(name, event["Action"]):
                    yield name

    def _create(self, api: APIClient, request: ContainerRequest) -> None:
        if not _create_volume(api, request) and not request.has_files:
            require_awaited()
            self.remove(request.name)
            _create_volume(api, request)
        require_awaited()
        image = api.inspect_image(request.image)  # type: ignore[no-untyped-call]
        with failpoints.around("engine.create_container"):
            api.create_container(
                request.image,
                request.command,
                name=request.name,
                environment=request.env,
                labels=request.labels,
                working_dir=request.working_dir,
                host_config=host_config(api, request, image["Config"]["Labels"] or {}),
            )

    def _adopt_or_replace(self, api: APIClient, request: ContainerRequest) -> None:
        found = DockerEngine.observe(self, request.name)
        if found.state == ContainerState.ABSENT:
            raise EngineUnavailable("the container is still being created for a request whose response was lost")
        if all(found.labels.get(key) == request.labels.get(key) for key in IDENTIFYING_LABELS):
            return
        require_awaited()
        self.remove_container(request.name)
        self._create(api, request)

    @failpoints.around("engine.remove_volume")
    def _remove_volume(self, name: str) -> None:
        with self._clients.acquire(ACT_SECONDS) as api, idempotent():
            api.remove_volume(name)


def own_name(labels: Mapping[str, str], name: str) -> str:
    """The name that a container's labels give it, and that something else may have changed to `name`."""
    return f"aw-{labels[SANDBOX_LABEL]}" if SANDBOX_LABEL in labels else name


def _time_of(api: APIClient, name: str, path: str) -> datetime | None:
    """Return the modification time of a path in a container. The response's content is not read."""
    found = find_object(api.get_archive, name, path)
    return None if found is None else read_time(found[1]["mtime"])


def _create_volume(api: APIClient, request: ContainerRequest) -> bool:
    """Create the volume. Returns whether it has labels: an existing volume keeps its labels or has none."""
    with failpoints.around("engine.create_volume"):
        volume = api.create_volume(request.name, labels=request.labels, driver_opts=request.volume_options)
    return INSTALLATION_LABEL in (volume["Labels"] or {})
