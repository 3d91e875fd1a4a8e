"""The listening sockets of the API: opened by the process, or inherited from the parent process.

A listening socket that outlives its processes loses no connection when a process is restarted: connections wait in its
queue for the next process. So `make run` opens the sockets, and passes their descriptors in `API_LISTEN_FDS`.
"""

import fcntl
import os
import socket
import struct

from shared.settings import Settings

VARIABLE = "API_LISTEN_FDS"
BACKLOG = 2048
IP_FREEBIND = 15
SIOCGIFADDR = 0x8915
DOCKER_BRIDGE = "docker0"
# Docker's default address of the bridge, until the engine has created the bridge.
DEFAULT_GATEWAY = "172.17.0.1"


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
    """Open sockets on the configured address and on the one that sandboxes reach.

    Args:
        settings: has the addresses and the port.
        shared: allow other processes to bind the same port; the kernel distributes the connections.
    """
    hosts = dict.fromkeys((settings.host, *gateway_addresses(settings)))
    return [_bind(host, settings.port, shared=shared) for host in hosts]


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if listener.family == socket.AF_INET:
        # The bridge may not exist yet: the engine may be down when the API starts.
        listener.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    return listener


def gateway_addresses(settings: Settings) -> list[str]:
    """Return the addresses that only sandboxes reach. Empty: the API listens on all, or sandboxes reach none.

    The last one is for sandboxes that an earlier version, or one without isolation, started on Docker's own bridge.
    """
    if settings.host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return []
    if settings.gateway_host != "auto":
        return [settings.gateway_host] if settings.gateway_host else []
    own = [settings.sandbox_gateway] if settings.network_isolation else []
    return [*own, _bridge_address() or DEFAULT_GATEWAY]


def _bridge_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", DOCKER_BRIDGE.encode())
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
