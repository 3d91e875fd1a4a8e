"""The ports that the service is about to take."""

import os
import socket
from collections.abc import Iterable

from deploy.service.errors import ServiceError
from deploy.service.processes import Process
from shared.settings import Settings

FLOWER_PORT = 5555
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


def refuse_taken_ports(settings: Settings, processes: Iterable[Process]) -> None:
    """Make sure that nobody answers where we are about to listen.

    Raises:
        ServiceError: somebody does.
    """
    wanted = {process.name for process in processes}
    if "web" in wanted and _answers(settings.host, settings.port):
        raise ServiceError(
            f"Something is listening on port {settings.port} already: another `make run`, perhaps. "
            "Stop it, or set AW_PORT to another port."
        )
    if "flower" in wanted and _answers("127.0.0.1", flower_port()):
        raise ServiceError(
            f"Something is listening on port {flower_port()} already. "
            "Stop it, set AW_FLOWER_PORT to another port, or leave Flower out: make run FLOWER=0"
        )


def flower_port() -> int:
    """Where Flower listens; the Procfile says the same."""
    return int(os.environ.get("AW_FLOWER_PORT") or FLOWER_PORT)


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((ANY_ADDRESS.get(host, host), port), timeout=1).close()
    except OSError:
        return False
    return True
