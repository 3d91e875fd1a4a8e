"""From a sandbox's row and spec to its container."""

import hashlib
import hmac
import json
from typing import Any

from shared.models import Sandbox, SandboxSpec
from worker.engine.docker_engine import INSTALLATION_LABEL, OWNER_LABEL, SANDBOX_LABEL
from worker.engine.protocol import ContainerRequest, ContainerStatus

NAME_PREFIX = "aw-"
# Read by the agent server at boot. Keys go there, and not into the environment, which `docker inspect` shows.
CONFIG_PATH = "/etc/agent-workspace/server.json"
CONFIG_ENV = "OPENHANDS_AGENT_SERVER_CONFIG_PATH"
AGENT_SERVER = "AGENT_SERVER"

# Events are on their way half a second after they happen, and wait out a long absence of the API.
WEBHOOK = {
    "event_buffer_size": 20,
    "flush_delay": 0.5,
    "num_retries": 3,
    "retry_delay": 2,
    "max_queue_size": 10_000,
}

_SINCE_BOOT = {
    "conversations_path": "/workspace/conversations",
    "bash_events_dir": "/workspace/bash_events",
    # A killed server's lease would keep its conversations closed to the next one; there is only one here.
    "lease_ttl_seconds": 0,
}


def container_name(sandbox_id: str) -> str:
    """The name of a sandbox's container and volume."""
    return NAME_PREFIX + sandbox_id


def container_request(sandbox: Sandbox, spec: SandboxSpec, *, installation: str, address: str) -> ContainerRequest:
    """What the container is made from."""
    return ContainerRequest(
        name=container_name(sandbox.id),
        image=spec.id,
        command=spec.command,
        env=_environment(spec),
        labels={
            INSTALLATION_LABEL: installation,
            SANDBOX_LABEL: sandbox.id,
            OWNER_LABEL: sandbox.owner_id or "",
        },
        working_dir=spec.working_dir,
        ports=list(spec.ports.values()),
        address=address,
        memory_bytes=spec.memory_bytes,
        cpus=spec.cpus,
        pids=spec.pids,
        capabilities=spec.capabilities,
        runtime=spec.runtime,
        has_files=sandbox.ready_at is not None,
    )


def server_config(session_key: str, *, webhook_url: str, origins: list[str]) -> bytes:
    """The agent server's configuration file; its keys are the fields of the server's `Config`."""
    own = init_config(session_key, webhook_url=webhook_url)
    return json.dumps({**_SINCE_BOOT, "allow_cors_origins": origins, **own}).encode()


def dormant_config(boot_key: str, *, origins: list[str]) -> bytes:
    """The same for a server that boots for nobody, and waits for its `init_config` (wire contract 3.4).

    What is read at boot alone must be here already.
    """
    own = {"deferred_init": True, "secret_key": boot_key}
    return json.dumps({**_SINCE_BOOT, "allow_cors_origins": origins, **own}).encode()


def init_config(session_key: str, *, webhook_url: str) -> dict[str, Any]:
    """What makes a server its owner's."""
    return {
        "session_api_keys": [session_key],
        # Without one it would forget the conversations' keys at a restart; it must outlive the container.
        "secret_key": hmac.new(session_key.encode(), b"agent server secret key", hashlib.sha256).hexdigest(),
        "webhooks": [{"base_url": webhook_url, **WEBHOOK}],
    }


def exposed_urls(spec: SandboxSpec, observed: ContainerStatus, host: str) -> list[dict[str, str | int]]:
    """The URLs of the published ports, in the shape of the wire's ExposedUrl."""
    return [
        {"name": name, "url": f"http://{host}:{observed.ports[port]}", "port": port}
        for name, port in spec.ports.items()
        if port in observed.ports
    ]


def _environment(spec: SandboxSpec) -> dict[str, str]:
    ports = {name: str(port) for name, port in spec.ports.items()}
    # Nothing at boot may wait for a network: the price list comes with the package.
    return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", **ports, **spec.env, CONFIG_ENV: CONFIG_PATH}
