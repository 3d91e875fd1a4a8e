"""Docker's client with a timeout for every call, and its errors in our words."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
import urllib3
from docker import APIClient
from docker.errors import APIError, DockerException, NotFound, StreamParseError
from docker.types import LogConfig

from worker.engine.protocol import (
    ContainerRequest,
    EngineError,
    EngineFailing,
    EngineRefused,
    EngineUnavailable,
    ImageMissing,
)

# The sandbox's files: everything below it outlives the container.
WORKSPACE = "/workspace"
NOT_MODIFIED, CONFLICT = 304, 409
SERVER_ERROR = 500
# "Request timeout" and "too many requests": the request is in order, its moment was not.
BAD_MOMENTS = (408, 429)
# The engine can't be reached, or its answer ended too early.
UNANSWERED = (
    DockerException,
    StreamParseError,
    requests.exceptions.RequestException,
    urllib3.exceptions.HTTPError,
    OSError,
)


class TimedClient(APIClient):
    """Docker's client, whose timeout holds for pulls and events, too: each of their lines must come within it."""

    def _set_request_timeout(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = self.timeout
        return kwargs


@contextmanager
def translated() -> Iterator[None]:
    """Raise Docker's errors as those of `worker.engine.protocol`."""
    try:
        yield
    except NotFound as error:
        raise (ImageMissing if "image" in str(error.explanation).lower() else EngineRefused)(_words(error)) from None
    except APIError as error:
        raise _refusal(error) from None
    except UNANSWERED as error:
        raise EngineUnavailable(type(error).__name__) from None


@contextmanager
def already() -> Iterator[None]:
    """Let "not there" and "already so" pass as the successes they are.

    What a conflict means is seen at the next look: no step believes its own success.
    """
    try:
        yield
    except APIError as error:
        if error.status_code not in (NOT_MODIFIED, CONFLICT) and not isinstance(error, NotFound):
            raise


def host_config(api: APIClient, request: ContainerRequest) -> dict[str, Any]:
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


def _refusal(error: APIError) -> EngineError:
    """An engine that fails (5xx) is in trouble whatever it is asked; one that refuses (4xx) is well."""
    status = error.status_code
    if status is not None and (status >= SERVER_ERROR or status in BAD_MOMENTS):
        return EngineFailing(f"status {status}: {_words(error)}")
    return EngineRefused(_words(error))


def _words(error: APIError) -> str:
    return str(error.explanation or error)[:500]
