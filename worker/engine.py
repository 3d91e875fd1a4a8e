"""The Docker Engine. The only file that imports `docker`; each thread has a client of its own."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
from docker import APIClient
from docker.errors import APIError, DockerException, NotFound
from docker.types import LogConfig

from shared import failpoints
from worker.containers import (
    ACT_SECONDS,
    ContainerRequest,
    ContainerState,
    EngineError,
    EngineFailing,
    EngineRefused,
    EngineUnavailable,
    ImageMissing,
    Listed,
    Observed,
)
from worker.engine_formats import STATES, pack_file, read_observed
from worker.own_doings import OwnDoings

INSTALLATION_LABEL = "agent-workspace.installation"
SANDBOX_LABEL = "agent-workspace.sandbox"
# Whose container it is. The other labels say what was so when it was made: a member of the warm pool had no owner.
IDENTIFYING_LABELS = (INSTALLATION_LABEL, SANDBOX_LABEL)
# The sandbox's files: everything below it outlives the container.
WORKSPACE = "/workspace"

# The longest waits for an answer, in seconds: to a question about one thing, to one about all, for the next line of a
# pull's progress, and for the next event before the stream of events is opened anew.
READ_SECONDS = 5
LIST_SECONDS = 30
PULL_SECONDS = 300
FOLLOW_SECONDS = 60
NOT_MODIFIED, CONFLICT = 304, 409
SERVER_ERROR = 500

# What happens to a container that may change what we know of it.
EVENTS = ["start", "die", "oom", "pause", "unpause", "destroy"]


class DockerEngine:
    """The engine at one address; see `worker.containers.Engine` for its promises."""

    def __init__(self, base_url: str) -> None:
        """Connect lazily to `base_url`, for example unix:///var/run/docker.sock."""
        self._base_url = base_url
        self._version: str | None = None
        self._local = threading.local()
        self._clients: list[APIClient] = []
        self._stream: Any = None
        self._own = OwnDoings()

    def read_id(self) -> str:
        """The engine's id and data root (Docker's `GET /info`): older engines of one machine share their id."""
        with _translated():
            found = self._api(LIST_SECONDS).info()
        return f"{found['ID']} {found['DockerRootDir']}"

    def observe(self, name: str) -> Observed:
        """What is there of one sandbox."""
        with _translated():
            try:
                found = self._api().inspect_container(name)
            except NotFound:
                return Observed(ContainerState.ABSENT, leftovers=self._has_volume(name))
        return read_observed(found)

    def create(self, request: ContainerRequest, seconds: int = ACT_SECONDS) -> None:
        """Create, adopt or replace the container."""
        with _translated():
            try:
                self._create(request, seconds)
            except APIError as error:
                if error.status_code != CONFLICT:
                    raise
                self._adopt_or_replace(request, seconds)

    @failpoints.watched("engine.pull")
    def pull(self, image: str) -> None:
        """Fetch an image."""
        repository, _, tag = image.partition("@") if "@" in image else image.rpartition(":")
        if not repository or "/" in tag:
            repository, tag = image, "latest"
        client = self._connect(PULL_SECONDS)
        try:
            with _translated():
                # What goes wrong once it has begun is told in the midst of its progress.
                for told in client.pull(repository, tag=tag, stream=True, decode=True):
                    if "error" in told:
                        raise EngineRefused(told["error"][:500])
        except EngineFailing as error:
            # So it answers where a registry can't be reached, too. An engine in trouble fails at any question.
            self.find_image(image)
            raise ImageMissing(str(error)) from None
        except EngineRefused as error:
            raise ImageMissing(str(error)) from None
        finally:
            client.close()

    def find_image(self, image: str) -> str | None:
        """The id of an image that is here."""
        with _translated():
            try:
                return str(self._api().inspect_image(image)["Id"])  # type: ignore[no-untyped-call]
            except NotFound:
                return None

    @failpoints.watched("engine.put_file")
    def put_file(self, name: str, path: str, content: bytes) -> None:
        """Write a read-only file into the container."""
        with _translated():
            self._api(ACT_SECONDS).put_archive(name, "/", pack_file(path.lstrip("/"), content))

    @failpoints.watched("engine.start")
    def start(self, name: str) -> None:
        """Start the container."""
        with _translated(), _already(), self._own.expecting(name, "start"):
            self._api(ACT_SECONDS).start(name)

    @failpoints.watched("engine.freeze")
    def freeze(self, name: str) -> None:
        """Freeze the container."""
        with _translated(), _already(), self._own.expecting(name, "pause"):
            self._api(ACT_SECONDS).pause(name)

    @failpoints.watched("engine.unfreeze")
    def unfreeze(self, name: str) -> None:
        """Unfreeze the container."""
        try:
            with _translated(), _already(), self._own.expecting(name, "unpause"):
                self._api(ACT_SECONDS).unpause(name)
        except EngineFailing:
            # "Not paused" is a 500, told apart from a real one by its words only, or by looking.
            if self.observe(name).state == ContainerState.FROZEN:
                raise

    @failpoints.watched("engine.stop")
    def stop(self, name: str, seconds: int) -> None:
        """Stop the container."""
        with _translated(), _already():
            # The client waits for the container's grace as well.
            self._api(ACT_SECONDS).stop(name, timeout=seconds)

    @failpoints.watched("engine.discard")
    def discard(self, name: str) -> None:
        """Remove the container."""
        with _translated(), _already():
            self._api(ACT_SECONDS).remove_container(name, force=True, v=True)

    def remove(self, name: str) -> None:
        """Remove the container and its volume."""
        self.discard(name)
        self._remove_volume(name)

    def read_log(self, name: str, lines: int) -> str:
        """The container's last lines."""
        with _translated():
            try:
                text: bytes = self._api().logs(name, tail=lines)
            except NotFound:
                return ""
        return text.decode(errors="replace").replace("\0", "")

    def list_containers(self, installation: str) -> list[Listed]:
        """Every container of this installation."""
        wanted = {"label": [f"{INSTALLATION_LABEL}={installation}"]}
        with _translated():
            found = self._api(LIST_SECONDS).containers(all=True, filters=wanted)
        return [
            Listed(item["Names"][0].lstrip("/"), STATES[item["State"]], item["Labels"], item["ImageID"])
            for item in found
            if item["Names"]
        ]

    def list_volumes(self, installation: str) -> list[str]:
        """Every volume of this installation."""
        wanted = {"label": [f"{INSTALLATION_LABEL}={installation}"]}
        with _translated():
            found = self._api(LIST_SECONDS).volumes(filters=wanted)
        return [item["Name"] for item in found.get("Volumes") or []]

    def list_unlabelled_volumes(self) -> list[str]:
        """Every volume without an installation's label."""
        with _translated():
            found = self._api(LIST_SECONDS).volumes()
        volumes = found.get("Volumes") or []
        return [item["Name"] for item in volumes if INSTALLATION_LABEL not in (item["Labels"] or {})]

    def follow(self, installation: str) -> Iterator[str]:
        """The names of containers as they change behind our back."""
        wanted = {"type": ["container"], "event": EVENTS, "label": [f"{INSTALLATION_LABEL}={installation}"]}
        client = self._api(FOLLOW_SECONDS)
        with _translated():
            # The engine answers before it listens: what happens in between, it tells from its memory.
            self._stream = client.events(decode=True, filters=wanted, since=int(time.time()))
        return self._names(self._stream)

    def close(self) -> None:
        """End `follow` and every connection, from any thread."""
        if self._stream is not None:
            self._stream.close()
        for client in self._clients:
            client.close()

    def _names(self, stream: Any) -> Iterator[str]:
        with _translated():
            for event in stream:
                name = event["Actor"]["Attributes"]["name"]
                if not self._own.are_told(name, event["Action"]):
                    yield name

    def _api(self, seconds: int = READ_SECONDS) -> APIClient:
        """This thread's client, which waits so long for the next answer."""
        client: APIClient | None = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = self._connect(READ_SECONDS)
            self._clients.append(client)
        client.timeout = seconds
        return client

    def _connect(self, timeout: int) -> APIClient:
        with _translated():
            client = APIClient(self._base_url, version=self._version or "auto", timeout=timeout)
        self._version = client.api_version
        return client

    def _has_volume(self, name: str) -> bool:
        try:
            self._api().inspect_volume(name)
        except NotFound:
            return False
        return True

    def _create(self, request: ContainerRequest, seconds: int) -> None:
        api = self._api(seconds)
        if not _create_volume(api, request) and not request.has_files:
            self.remove(request.name)
            _create_volume(api, request)
        with failpoints.around("engine.create_container"):
            api.create_container(
                request.image,
                request.command,
                name=request.name,
                environment=request.env,
                labels=request.labels,
                working_dir=request.working_dir,
                ports=request.ports,
                host_config=_host_config(api, request),
            )

    def _adopt_or_replace(self, request: ContainerRequest, seconds: int) -> None:
        found = self.observe(request.name)
        if found.state == ContainerState.ABSENT:
            raise EngineUnavailable("the container is still being made, for a request whose answer was lost")
        if all(found.labels.get(key) == request.labels.get(key) for key in IDENTIFYING_LABELS):
            return
        self.discard(request.name)
        self._create(request, seconds)

    @failpoints.watched("engine.remove_volume")
    def _remove_volume(self, name: str) -> None:
        with _translated(), _already():
            self._api(ACT_SECONDS).remove_volume(name)


def _create_volume(api: APIClient, request: ContainerRequest) -> bool:
    """Create the volume; whether it has labels: one that is there already keeps those that it has, or none."""
    with failpoints.around("engine.create_volume"):
        volume = api.create_volume(request.name, labels=request.labels)
    return INSTALLATION_LABEL in (volume["Labels"] or {})


def _host_config(api: APIClient, request: ContainerRequest) -> dict[str, Any]:
    """Least privilege, and a limit to everything a container can use up."""
    config: dict[str, Any] = api.create_host_config(
        binds={request.name: {"bind": WORKSPACE, "mode": "rw"}},
        # None: the engine picks a free port, so that no two starts can race for one.
        port_bindings=dict.fromkeys(request.ports, (request.address, None)),
        extra_hosts={"host.docker.internal": "host-gateway"},
        cap_drop=["ALL"],
        cap_add=request.capabilities,
        security_opt=["no-new-privileges:true"],
        mem_limit=request.memory_bytes,
        memswap_limit=request.memory_bytes,
        nano_cpus=int(request.cpus * 1_000_000_000),
        pids_limit=request.pids,
        init=True,
        log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": "10m", "max-file": "3"}),
        runtime=request.runtime,
    )
    return config


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except NotFound as error:
        raise (ImageMissing if "image" in str(error.explanation).lower() else EngineRefused)(_words(error)) from None
    except APIError as error:
        raise _refusal(error) from None
    except (DockerException, requests.exceptions.RequestException, OSError) as error:
        raise EngineUnavailable(type(error).__name__) from None


@contextmanager
def _already() -> Iterator[None]:
    """Let "not there" and "already so" pass as the successes they are.

    What a conflict means is seen at the next look: no step believes its own success.
    """
    try:
        yield
    except APIError as error:
        if error.status_code not in (NOT_MODIFIED, CONFLICT) and not isinstance(error, NotFound):
            raise


def _refusal(error: APIError) -> EngineError:
    """An engine that fails (5xx) is in trouble whatever it is asked; one that refuses (4xx) is well."""
    if error.status_code is not None and error.status_code >= SERVER_ERROR:
        return EngineFailing(f"status {error.status_code}: {_words(error)}")
    return EngineRefused(_words(error))


def _words(error: APIError) -> str:
    return str(error.explanation or error)[:500]
