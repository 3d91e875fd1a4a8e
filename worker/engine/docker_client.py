"""Docker's client with a timeout for every call, and its errors translated to `worker.engine.protocol`."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import requests
import urllib3
from docker import APIClient
from docker.errors import APIError, DockerException, NotFound, StreamParseError
from docker.transport import UnixHTTPAdapter
from docker.types import LogConfig

from shared.container_logs.printed_text import PrintedLog
from shared.observability import correlation, failpoints
from worker.engine import confinement, log_stream
from worker.engine.protocol import (
    ContainerRequest,
    EngineError,
    EngineFailing,
    EngineRefused,
    EngineUnavailable,
    ImageMissing,
    NetworkRequest,
)

# Folder of the sandbox's files, which outlive the container.
WORKSPACE = "/workspace"
# The name server of a container that may reach none: itself. Otherwise the engine would give it those of the machine.
NO_RESOLVER = ("127.0.0.1",)
NOT_MODIFIED, BAD_REQUEST, CONFLICT = 304, 400, 409
CHUNK_BYTES = 64 * 1024
SERVER_ERROR = 500
# "Request timeout" and "too many requests": the request is valid and may succeed later.
TEMPORARY_ERRORS = (408, 429)
# Raised when the engine can't be reached, or when its response ends too early.
CONNECTION_ERRORS = (
    DockerException,
    StreamParseError,
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,
    OSError,
)


class SharedConnections(UnixHTTPAdapter):
    """Docker's adapter, with the same connections for all URLs.

    Docker's has connections of its own for each of the last 25 URLs. Most URLs contain a container's name, so hardly
    any connection would be used again, and a hundred clients would keep 2,500 of them open.
    """

    def get_connection(self, _url: str | bytes, proxies: Any = None) -> Any:
        return super().get_connection("http+docker://engine", proxies)


class TimedClient(APIClient):
    """Docker's client, with a timeout that also applies to each line of pulls and events."""

    def mount(self, prefix: str | bytes, adapter: Any) -> None:
        """Use `SharedConnections` at a Unix socket."""
        if isinstance(adapter, UnixHTTPAdapter):
            adapter = SharedConnections(adapter.socket_path, adapter.timeout)
            # No proxy is on the way; looking for one in the environment takes as long as the rest of a call.
            self.trust_env = False
        super().mount(prefix, adapter)

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a request, as one span of a trace."""
        with correlation.span(f"engine {request.method}", "client", path=request.path_url.partition("?")[0]):
            return super().send(request, **options)

    def read_log(self, name: str) -> PrintedLog:
        """The last entries of a container's log; none if there is no container.

        `APIClient.logs` would inspect the container first, and read without a limit.
        """
        wanted = {"stdout": 1, "stderr": 1, "timestamps": 1, "tail": log_stream.MAX_ENTRIES}
        url = self._url("/containers/{0}/logs", name)  # type: ignore[attr-defined]
        with closing(self._get(url, params=wanted, stream=True)) as response:  # type: ignore[attr-defined]
            try:
                self._raise_for_status(response)  # type: ignore[attr-defined]
            except NotFound:
                return PrintedLog()
            return log_stream.read_log(response.iter_content(CHUNK_BYTES))

    def _set_request_timeout(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = self.timeout
        return kwargs


class ClientPool:
    """Clients for one engine. No two calls use the same client at a time."""

    def __init__(self, base_url: str, connect_seconds: int) -> None:
        """Connect lazily to `base_url`, with a timeout of `connect_seconds`."""
        self._base_url = base_url
        self._connect_seconds = connect_seconds
        # Version of the engine's API that the clients use; None: the next client asks the engine for it.
        self.version: str | None = None
        self._idle: deque[TimedClient] = deque()

    @contextmanager
    def acquire(self, seconds: int) -> Iterator[TimedClient]:
        """Take a client with a timeout of `seconds` per response; return it to the pool after the block."""
        with translated():
            try:
                client = self._idle.pop()
            except IndexError:
                client = self.connect()
            client.timeout = seconds
            try:
                yield client
            except APIError as error:
                if _is_of_version(error):
                    client.close()
                    self._forget_version()
                raise
            finally:
                if client.api_version == self.version:
                    self._idle.append(client)

    def connect(self) -> TimedClient:
        """Create a client that the pool does not manage."""
        with translated():
            client = TimedClient(self._base_url, version=self.version or "auto", timeout=self._connect_seconds)
        self.version = client.api_version
        return client

    def close(self) -> None:
        for client in tuple(self._idle):
            client.close()

    def _forget_version(self) -> None:
        """Make the next client ask for the API's version: the engine was replaced by one with another version."""
        self.version = None
        while self._idle:
            self._idle.pop().close()


@contextmanager
def translated() -> Iterator[None]:
    """Translate Docker's errors to those of `worker.engine.protocol`."""
    try:
        yield
    except NotFound as error:
        raise (ImageMissing if "image" in str(error.explanation).lower() else EngineRefused)(
            _error_text(error)
        ) from None
    except APIError as error:
        raise _translate(error) from None
    except CONNECTION_ERRORS as error:
        raise EngineUnavailable(type(error).__name__) from None


@contextmanager
def idempotent() -> Iterator[None]:
    """Treat "not found", "not modified" and "conflict" as success: the call is idempotent (law 5).

    The next observation shows what a conflict meant: no action trusts its own success.
    """
    try:
        yield
    except APIError as error:
        if error.status_code not in (NOT_MODIFIED, CONFLICT) and not isinstance(error, NotFound):
            raise


def find_object(inspect: Callable[..., Any], *of: str) -> Any:
    try:
        return inspect(*of)
    except NotFound:
        return None


def host_config(api: APIClient, request: ContainerRequest, image_labels: Mapping[str, str]) -> dict[str, Any]:
    """Docker's host configuration: least privilege, and a limit on every resource of a container."""
    endpoint = request.network
    config: dict[str, Any] = api.create_host_config(
        binds={request.name: {"bind": WORKSPACE, "mode": "rw"}},
        extra_hosts={"host.docker.internal": endpoint.host_address if endpoint else "host-gateway"},
        network_mode=endpoint.name if endpoint else None,
        dns=list(endpoint.resolvers or NO_RESOLVER) if endpoint else None,
        cap_drop=["ALL"],
        cap_add=request.capabilities,
        mem_limit=request.memory_bytes,
        memswap_limit=request.memory_bytes,
        nano_cpus=int(request.cpus * 1_000_000_000),
        pids_limit=request.pids,
        log_config=LogConfig(type=LogConfig.types.JSON, config={"max-size": "10m", "max-file": "3"}),
        runtime=request.runtime,
        **confinement.host_options(image_labels, request.memory_bytes),
    )
    return config


def make_network(api: APIClient, request: NetworkRequest) -> None:
    """Create the network, unless it exists, and check it.

    Raises:
        EngineRefused: the existing network is not as requested.
    """
    if (found := find_object(api.inspect_network, request.name)) is None:
        _create_network(api, request)
        found = find_object(api.inspect_network, request.name) or {}
    _check_network(found, request)


def network_data(request: NetworkRequest) -> dict[str, Any]:
    """The body of Docker's `POST /networks/create`."""
    return {
        "Name": request.name,
        "Driver": "bridge",
        "Options": _network_options(request),
        "IPAM": {"Driver": "default", "Config": [{"Subnet": request.subnet, "Gateway": request.gateway}]},
        "CheckDuplicate": True,
        "Labels": request.labels,
    }


def _create_network(api: APIClient, request: NetworkRequest) -> None:
    data = network_data(request)
    try:
        with idempotent(), failpoints.around("engine.create_network"):
            api.create_network(
                data["Name"],
                driver=data["Driver"],
                options=data["Options"],
                ipam=data["IPAM"],
                check_duplicate=data["CheckDuplicate"],
                labels=data["Labels"],
            )
    except APIError as error:
        raise EngineRefused(
            f"the engine can't make the network of sandboxes, {request.subnet} ({_error_text(error)}): set "
            "AW_SANDBOX_ADDRESSES to a network that is free"
        ) from None


def _check_network(found: dict[str, Any], request: NetworkRequest) -> None:
    subnets = [pool.get("Subnet") for pool in (found.get("IPAM") or {}).get("Config") or []]
    options = found.get("Options") or {}
    wanted = _network_options(request)
    if subnets != [request.subnet]:
        raise EngineRefused(
            f"the network {request.name} has the addresses {', '.join(map(str, subnets))}, not {request.subnet}: stop "
            f"its sandboxes, remove it (docker network rm {request.name}), or set AW_SANDBOX_ADDRESSES back"
        )
    if found.get("EnableIPv6") or any(options.get(name) != value for name, value in wanted.items()):
        raise EngineRefused(f"the network {request.name} was changed: remove it (docker network rm {request.name})")


def _network_options(request: NetworkRequest) -> dict[str, str]:
    return {"com.docker.network.bridge.name": request.bridge, "com.docker.network.bridge.enable_icc": "false"}


def _translate(error: APIError) -> EngineError:
    """Distinguish a failing engine (5xx) from a healthy one that refuses the request (4xx)."""
    status = error.status_code
    if status is not None and (status >= SERVER_ERROR or status in TEMPORARY_ERRORS or _is_of_version(error)):
        return EngineFailing(f"status {status}: {_error_text(error)}")
    return EngineRefused(_error_text(error))


def _is_of_version(error: APIError) -> bool:
    """Whether the engine rejects the version of its API that the client uses."""
    return error.status_code == BAD_REQUEST and "client version" in _error_text(error)


def _error_text(error: APIError) -> str:
    return str(error.explanation or error)[:500]
