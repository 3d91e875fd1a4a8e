"""The service's ports."""

import os
import socket
from collections.abc import Iterable

from deploy.service.errors import ServiceError
from deploy.service.health import ANY_ADDRESS
from deploy.service.processes import Process
from shared.settings import Settings
from worker.settings import WorkerSettings

FLOWER_PORT = 5555
# Of the troubleshooting page.
ENTRY = "a-port-is-in-use"


def refuse_taken_ports(settings: Settings, processes: Iterable[Process]) -> None:
    """Check that the service's ports are free.

    Raises:
        ServiceError: another process listens on one of them.
    """
    names = {process.name for process in processes}
    if "web" in names and _answers(settings.host, settings.port):
        raise ServiceError(
            f"Port {settings.port} is in use, perhaps by another `make run`. "
            "Stop that process, or set AW_PORT to another port.",
            ENTRY,
        )
    if "web" in names and settings.client_port and _answers(settings.host, settings.client_port):
        raise ServiceError(
            f"Port {settings.client_port} is in use. Stop that process, or set AW_CLIENT_PORT to another port.", ENTRY
        )
    if "door" in names:
        _refuse_taken_door(WorkerSettings())
    if "flower" in names and _answers("127.0.0.1", flower_port()):
        raise ServiceError(
            f"Port {flower_port()} is in use. "
            "Stop that process, set AW_FLOWER_PORT to another port, or disable Flower: make run FLOWER=0",
            ENTRY,
        )


def _refuse_taken_door(own: WorkerSettings) -> None:
    if _answers(own.node_address, own.door_port):
        text = f"Port {own.door_port} is in use. Stop that process, or set AW_DOOR_PORT to another port."
        raise ServiceError(text, ENTRY)


def flower_port() -> int:
    """Flower's port, as in the Procfile."""
    return int(os.environ.get("AW_FLOWER_PORT") or FLOWER_PORT)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((ANY_ADDRESS.get(host, host), port), timeout=1).close()
    except OSError:
        return False
    return True
