"""Conversion of the Docker Engine's formats to and from this service's types."""

import io
import re
import tarfile
from datetime import datetime
from typing import Any

from worker.engine.protocol import ContainerState, ContainerStatus, ContainerSummary

STATES = {
    "created": ContainerState.CREATED,
    "running": ContainerState.RUNNING,
    "restarting": ContainerState.RUNNING,
    "paused": ContainerState.PAUSED,
    "exited": ContainerState.EXITED,
    "removing": ContainerState.REMOVING,
    "dead": ContainerState.DEAD,
}
LOST_NETWORK = re.compile(r"network \S+ not found")
USING_ADDRESSES = (ContainerState.RUNNING, ContainerState.PAUSED)


def read_observed(found: dict[str, Any]) -> ContainerStatus:
    """Convert an inspection of a container (Docker's `GET /containers/{id}/json`)."""
    state = found["State"]
    networks = read_networks(found, STATES[state["Status"]])
    return ContainerStatus(
        STATES[state["Status"]],
        exit_code=state["ExitCode"],
        oom_killed=state["OOMKilled"],
        address=next(filter(None, networks.values()), ""),
        is_published=bool(found["HostConfig"].get("PortBindings")),
        labels=found["Config"]["Labels"] or {},
        networks=networks,
        container_id=found["Id"],
        started_at=read_time(state["StartedAt"]),
        has_lost_network=names_lost_network(state.get("Error") or ""),
    )


def names_lost_network(error: str) -> bool:
    """Whether an engine's error says that a container's network was removed."""
    return LOST_NETWORK.search(error) is not None


def read_summary(item: dict[str, Any]) -> ContainerSummary:
    """Convert an item of the list of containers (Docker's `GET /containers/json`)."""
    return ContainerSummary(
        item["Names"][0].lstrip("/"),
        STATES[item["State"]],
        item["Labels"],
        item["ImageID"],
        read_networks(item, STATES[item["State"]]),
        is_published=any("PublicPort" in port for port in item.get("Ports") or ()),
    )


def read_networks(found: dict[str, Any], state: ContainerState) -> dict[str, str]:
    """A container's address in each of its networks, from an inspection or a list; empty while it does not run.

    A daemon that was killed still names the addresses of the containers that ended with it, and gives them to others.
    """
    networks = (found.get("NetworkSettings") or {}).get("Networks") or {}
    addresses = {name: (network or {}).get("IPAddress") or "" for name, network in networks.items()}
    return addresses if state in USING_ADDRESSES else dict.fromkeys(addresses, "")


def read_time(text: str) -> datetime:
    """Parse a time of Docker's, with up to nine decimal places of a second."""
    return datetime.fromisoformat(text)


def pack_file(path: str, content: bytes) -> bytes:
    """Create a tar with one read-only file, which every user in the container can read."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(path)
        info.size, info.mode = len(content), 0o444
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
