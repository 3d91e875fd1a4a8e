"""From a sandbox's row and spec to its container."""

import hashlib
import hmac
import json

from shared.models import Sandbox, SandboxSpec
from worker.containers import ContainerRequest, Observed
from worker.engine import INSTALLATION_LABEL, SANDBOX_LABEL

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
            "agent-workspace.owner": sandbox.owner_id or "",
        },
        working_dir=spec.working_dir,
        ports=list(spec.ports.values()),
        address=address,
        memory_bytes=spec.memory_bytes,
        cpus=spec.cpus,
        pids=spec.pids,
        capabilities=spec.capabilities,
        runtime=spec.runtime,
    )


def server_config(session_key: str, *, webhook_url: str, origins: list[str]) -> bytes:
    """The agent server's configuration file (real-parts facts: file keys are those of its Config)."""
    config = {
        "session_api_keys": [session_key],
        # Without one it would forget the conversations' keys at a restart; it must outlive the container.
        "secret_key": hmac.new(session_key.encode(), b"agent server secret key", hashlib.sha256).hexdigest(),
        "webhooks": [{"base_url": webhook_url, **WEBHOOK}],
        "allow_cors_origins": origins,
        "conversations_path": "/workspace/conversations",
        "bash_events_dir": "/workspace/bash_events",
        # A killed server's lease would keep its conversations closed to the next one; there is only one here.
        "lease_ttl_seconds": 0,
    }
    return json.dumps(config).encode()


def exposed_urls(spec: SandboxSpec, observed: Observed, host: str) -> list[dict[str, str | int]]:
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
