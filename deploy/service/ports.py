"""The service's ports."""

import socket
from collections.abc import Iterable

from deploy.service.errors import ServiceError
from deploy.service.health import ANY_ADDRESS
from deploy.service.processes import Process
from shared.settings import Settings
from worker.settings import WorkerSettings

# The entry of the troubleshooting page.
ENTRY = "a-port-is-in-use"


def refuse_taken_ports(settings: Settings, processes: Iterable[Process]) -> None:
    """Check that the service's ports are free.

    Raises:
        ServiceError: another process listens on one of them.
    """
    names = {process.name for process in processes}
    if "web" in names and is_open(settings.host, settings.port):
        raise ServiceError(
            f"Port {settings.port} is in use, perhaps by another `make run`. "
            "Stop that process, or set AW_PORT to another port.",
            ENTRY,
        )
    if "web" in names and settings.client_port and is_open(settings.host, settings.client_port):
        raise ServiceError(
            f"Port {settings.client_port} is in use. Stop that process, or set AW_CLIENT_PORT to another port.", ENTRY
        )
    if "door" in names:
        _refuse_taken_door(WorkerSettings())
    if "flower" in names and is_open("127.0.0.1", settings.flower_port):
        raise ServiceError(
            f"Port {settings.flower_port} is in use. "
            "Stop that process, set AW_FLOWER_PORT to another port, or disable Flower: make run FLOWER=0",
            ENTRY,
        )


def is_open(host: str, port: int) -> bool:
    """Whether a process of this machine listens on a port."""
    try:
        socket.create_connection((ANY_ADDRESS.get(host, host), port), timeout=1).close()
    except OSError:
        return False
    return True


def _refuse_taken_door(own: WorkerSettings) -> None:
    if is_open(own.node_address, own.door_port):
        text = f"Port {own.door_port} is in use. Stop that process, or set AW_DOOR_PORT to another port."
        raise ServiceError(text, ENTRY)
