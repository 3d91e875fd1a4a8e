"""Doors of deployments: HAProxy as `deploy.door` runs it, without the start of a Python process."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from deploy.door.__main__ import prepare
from shared.settings import Settings
from tests.services import processes
from worker.settings import WorkerSettings


def start_door(environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start the door of a node with the environment of its processes."""
    values: dict[str, Any] = {
        name.removeprefix("AW_").lower(): value for name, value in environment.items() if name.startswith("AW_")
    }
    door = prepare(Settings(**_own(Settings, values)), WorkerSettings(**_own(WorkerSettings, values)))
    try:
        return processes.start(door.command, log, descriptors=door.descriptors)
    finally:
        for opened in door.sockets:
            opened.close()
        os.close(door.descriptors[-1])


def _own(kind: type[Settings | WorkerSettings], values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in kind.model_fields}
