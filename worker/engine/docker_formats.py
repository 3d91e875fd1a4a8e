"""What the Docker Engine sends and takes, in our own types."""

import io
import tarfile
from datetime import datetime
from typing import Any

from worker.engine.protocol import ContainerState, ContainerStatus

STATES = {
    "created": ContainerState.CREATED,
    "running": ContainerState.RUNNING,
    "restarting": ContainerState.RUNNING,
    "paused": ContainerState.FROZEN,
    "exited": ContainerState.EXITED,
    "removing": ContainerState.REMOVING,
    "dead": ContainerState.DEAD,
}


def read_observed(found: dict[str, Any]) -> ContainerStatus:
    """What an inspection shows (Docker's `GET /containers/{id}/json`)."""
    state = found["State"]
    published = found["NetworkSettings"].get("Ports") or {}
    return ContainerStatus(
        STATES[state["Status"]],
        exit_code=state["ExitCode"],
        oom_killed=state["OOMKilled"],
        ports={int(port.split("/")[0]): int(to[0]["HostPort"]) for port, to in published.items() if to},
        labels=found["Config"]["Labels"] or {},
    )


def read_time(text: str) -> datetime:
    """A time as Docker writes it, with up to nine digits of a second."""
    return datetime.fromisoformat(text)


def pack_file(path: str, content: bytes) -> bytes:
    """A tar of one file that its container's user can read and nobody there can change."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(path)
        info.size, info.mode = len(content), 0o444
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()
