"""The sockets of the API: our own, or those that whoever started us has opened and keeps open.

A listening socket that outlives the processes behind it loses no connection when one of them is restarted: what arrives
meanwhile waits in its queue for the next one. So `make run` opens them itself, and names them in `API_LISTEN_FDS`.
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
# Docker's own default for that bridge, for when the engine has not made it yet.
DEFAULT_GATEWAY = "172.17.0.1"


def get_sockets(settings: Settings) -> list[socket.socket]:
    """The sockets that we were given, or else new ones, on ports that several processes may share.

    Raises:
        OSError: an address is taken, or we were given what is no socket.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return [socket.socket(fileno=int(number)) for number in given.split(",")]
    return open_sockets(settings, shared=True)


def open_sockets(settings: Settings, *, shared: bool) -> list[socket.socket]:
    """Sockets on the configured address and on the one that sandboxes reach.

    Args:
        settings: names the addresses and the port.
        shared: let other processes bind them too, and the kernel spread the connections.
    """
    hosts = dict.fromkeys(host for host in (settings.host, gateway_address(settings)) if host)
    return [_bind(host, settings.port, shared=shared) for host in hosts]


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if listener.family == socket.AF_INET:
        # The bridge may appear after us: an engine may be down when we start.
        listener.setsockopt(socket.SOL_IP, IP_FREEBIND, 1)
    listener.bind((host, port))
    listener.listen(BACKLOG)
    return listener


def gateway_address(settings: Settings) -> str:
    """The address that sandboxes reach; empty: they reach all that there are, or none."""
    if settings.host in ("0.0.0.0", "::"):  # noqa: S104 - compared, not bound
        return ""
    return _bridge_address() or DEFAULT_GATEWAY if settings.gateway_host == "auto" else settings.gateway_host


def _bridge_address() -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack("256s", DOCKER_BRIDGE.encode())
        try:
            answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])
