"""The listening sockets of the API: opened by the process, or inherited from the parent process.

A listening socket that outlives its processes loses no connection when a process is restarted: connections wait in its
queue for the next process. So `make run` opens the sockets, and passes their descriptors in `API_LISTEN_FDS`.
"""

import os
import socket

from shared.agent_server.limits import KEEPALIVE
from shared.settings import Settings

VARIABLE = "API_LISTEN_FDS"
BACKLOG = 2048


def get_sockets(settings: Settings) -> list[socket.socket]:
    """Return the inherited sockets, or new ones on ports that processes share.

    Raises:
        OSError: an address is taken, or an inherited descriptor is not a socket.
    """
    inherited = os.environ.get(VARIABLE)
    if inherited:
        return [socket.socket(fileno=int(number)) for number in inherited.split(",")]
    return open_sockets(settings, shared=True)


def open_sockets(settings: Settings, *, shared: bool) -> list[socket.socket]:
    """Open sockets on the configured ports: the service's, and the client port, if there is one.

    Args:
        settings: the address and the ports.
        shared: whether other processes may bind the same ports; the kernel distributes the connections.

    Raises:
        OSError: an address is taken, or not one of this machine; the error names it.
    """
    ports = [port for port in (settings.port, settings.client_port) if port]
    return [_bind(settings.host, port, shared=shared) for port in ports]


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    for option in KEEPALIVE:  # the accepted connections inherit it
        listener.setsockopt(*option)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        raise OSError(error.errno, error.strerror, f"{host}:{port}") from None
    return listener
