"""Conversion of the Docker Engine's formats to and from this service's types."""

import io
import tarfile
from datetime import datetime
from typing import Any

from worker.engine.protocol import ContainerState, ContainerStatus

STATES = {
    "created": ContainerState.CREATED,
    "running": ContainerState.RUNNING,
    "restarting": ContainerState.RUNNING,
    "paused": ContainerState.PAUSED,
    "exited": ContainerState.EXITED,
    "removing": ContainerState.REMOVING,
    "dead": ContainerState.DEAD,
}


def read_observed(found: dict[str, Any]) -> ContainerStatus:
    """Convert an inspection of a container (Docker's `GET /containers/{id}/json`)."""
    state = found["State"]
    return ContainerStatus(
        STATES[state["Status"]],
        exit_code=state["ExitCode"],
        oom_killed=state["OOMKilled"],
        address=_read_address(found["NetworkSettings"]),
        is_published=bool(found["HostConfig"].get("PortBindings")),
        labels=found["Config"]["Labels"] or {},
    )


def _read_address(found: dict[str, Any]) -> str:
    """The address of a running or paused container in its only network. A stopped one has none."""
    networks = found.get("Networks") or {}
    return next((str(network["IPAddress"]) for network in networks.values() if network.get("IPAddress")), "")


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
