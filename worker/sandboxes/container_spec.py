"""The container of a sandbox, and its agent server's configuration, from its row and spec."""

import hashlib
import hmac
import json
from typing import Any

from shared.conversations.start import MAX_CONVERSATIONS
from shared.conversations.webhook_ingest import NODE_HEADER
from shared.models import Sandbox, SandboxSpec
from shared.sandboxes import egress
from worker.engine.docker_engine import INSTALLATION_LABEL, OWNER_LABEL, SANDBOX_LABEL
from worker.engine.protocol import ContainerRequest, ContainerStatus, ContainerSummary, NetworkEndpoint
from worker.network import proxy
from worker.network.proxy import PROXY_LABEL

NAME_PREFIX = "aw-"
# Prefix of the names of isolated sandboxes' networks.
NETWORK_PREFIX = "agent-workspace-"
# The configuration file that the agent server reads at boot. Keys are in this file, and not in the environment, which
# `docker inspect` shows. It is on the volume, because the root may be read-only. The default image's server removes its
# content after reading it.
CONFIG_PATH = "/workspace/.agent-server.json"
# The path in containers without the label, which earlier versions created.
FORMER_CONFIG_PATH = "/etc/agent-workspace/server.json"
CONFIG_LABEL = "agent-workspace.configuration"
CONFIG_ENV = "OPENHANDS_AGENT_SERVER_CONFIG_PATH"

# Events are sent half a second after they happen, and are buffered while the API is down.
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
    # A killed server's lease would lock its conversations for the next server; a sandbox has one server only.
    "lease_ttl_seconds": 0,
    # All agents of a shared sandbox may run at once. The server's default is 10, and it refuses the next start.
    "max_concurrent_runs": MAX_CONVERSATIONS,
}


def container_name(sandbox_id: str) -> str:
    return NAME_PREFIX + sandbox_id


def config_path(observed: ContainerStatus) -> str:
    """Where the agent server of a container reads its configuration."""
    return observed.labels.get(CONFIG_LABEL, FORMER_CONFIG_PATH)


def is_outdated(found: ContainerStatus | ContainerSummary, endpoint: NetworkEndpoint | None) -> bool:
    """Whether the door can't reach a container: it publishes ports, or is in no network or another than new ones."""
    own = {name for name in found.networks if name.startswith(NETWORK_PREFIX)}
    return found.is_published or not found.networks or own != ({endpoint.name} if endpoint else set())


def lacks_proxy(found: ContainerStatus, spec: SandboxSpec, endpoint: NetworkEndpoint | None) -> bool:
    """Whether a container was created before its spec's egress had host names: its environment lacks the proxy."""
    return PROXY_LABEL not in found.labels and bool(_proxy_variables(spec, endpoint))


def container_request(
    sandbox: Sandbox,
    spec: SandboxSpec,
    *,
    installation: str,
    network: NetworkEndpoint | None = None,
    disk_bytes: int = 0,
) -> ContainerRequest:
    """The request that creates the sandbox's container.

    Args:
        network: the container's network; None: the engine's own bridge.
        disk_bytes: the size of its disk if the spec has none; 0: no limit.
    """
    proxied = _proxy_variables(spec, network)
    return ContainerRequest(
        name=container_name(sandbox.id),
        image=spec.id,
        command=spec.command,
        env=proxied | _environment(spec),
        labels=labels_of(sandbox, installation) | ({PROXY_LABEL: network.proxy} if network and proxied else {}),
        working_dir=spec.working_dir,
        memory_bytes=spec.memory_bytes,
        cpus=spec.cpus,
        pids=spec.pids,
        capabilities=spec.capabilities,
        runtime=spec.runtime,
        has_files=sandbox.ready_at is not None,
        network=network,
        disk_bytes=disk_bytes if spec.disk_bytes is None else spec.disk_bytes,
    )


def labels_of(sandbox: Sandbox, installation: str) -> dict[str, str]:
    return {
        INSTALLATION_LABEL: installation,
        SANDBOX_LABEL: sandbox.id,
        OWNER_LABEL: sandbox.owner_id or "",
        CONFIG_LABEL: CONFIG_PATH,
    }


def sandbox_url(door: str, address: str, port: int) -> str:
    """Return the URL of a port of the container at `address`."""
    return f"{door}/{address}/{port}"


def server_config(session_key: str, *, node_id: str, webhook_url: str, origins: list[str]) -> bytes:
    """The agent server's configuration file; its keys are the fields of the server's `Config`."""
    own = init_config(session_key, node_id=node_id, webhook_url=webhook_url)
    return json.dumps({**_SINCE_BOOT, "allow_cors_origins": origins, **own}).encode()


def deferred_init_config(init_key: str, *, origins: list[str]) -> bytes:
    """The same file for a server of the warm pool, which awaits its `init_config` (wire contract 3.4).

    Settings that the server reads only at boot must be in this file.
    """
    own = {"deferred_init": True, "secret_key": init_key}
    return json.dumps({**_SINCE_BOOT, "allow_cors_origins": origins, **own}).encode()


def init_config(session_key: str, *, node_id: str, webhook_url: str) -> dict[str, Any]:
    """The part of the configuration that differs by owner; the body of the init request.

    Args:
        node_id: the node of the container, which the agent server names in each webhook.
    """
    return {
        "session_api_keys": [session_key],
        # Without it a restarted server would lose its conversations' keys. It must outlive the container.
        "secret_key": hmac.new(session_key.encode(), b"agent server secret key", hashlib.sha256).hexdigest(),
        "webhooks": [{"base_url": webhook_url, "headers": {NODE_HEADER: node_id}, **WEBHOOK}],
    }


def exposed_urls(spec: SandboxSpec, observed: ContainerStatus, door: str) -> list[dict[str, str | int]]:
    """The URLs of the spec's ports at the node's door, in the shape of the wire's ExposedUrl."""
    if not observed.address:
        return []
    return [
        {"name": name, "url": sandbox_url(door, observed.address, port), "port": port}
        for name, port in spec.ports.items()
    ]


def _environment(spec: SandboxSpec) -> dict[str, str]:
    ports = {name: str(port) for name, port in spec.ports.items()}
    # The boot must not wait for a network: the package has a copy of the price list.
    return {"LITELLM_LOCAL_MODEL_COST_MAP": "True", **ports, **spec.env, CONFIG_ENV: CONFIG_PATH}


def _proxy_variables(spec: SandboxSpec, network: NetworkEndpoint | None) -> dict[str, str]:
    """The variables that name the proxy; none if the spec's egress has no host names."""
    if network is None or not network.proxy:
        return {}
    found = egress.parse(spec.egress)
    return proxy.environment(network.proxy, (*network.direct, *map(str, found.networks))) if found.names else {}
