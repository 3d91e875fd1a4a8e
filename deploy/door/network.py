"""The network of a node's sandboxes, and the address at which they reach the node."""

import fcntl
import socket
import struct
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from shared.settings import Settings

SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B
BRIDGE = "docker0"
# Docker's default, until the engine has created the bridge.
DEFAULT = ("172.17.0.1", "255.255.0.0")


class SandboxSubnet(NamedTuple):
    """The sandboxes' addresses, and the node's own address among them."""

    addresses: IPv4Network
    gateway: IPv4Address


def find_network(settings: Settings) -> SandboxSubnet:
    """Return the network whose first host is the gateway: that of isolated sandboxes, or docker0's."""
    network = settings.sandbox_network if settings.network_isolation else settings.sandbox_addresses
    if network is not None:
        return SandboxSubnet(network, network[1])
    gateway, mask = _read_interface(SIOCGIFADDR), _read_interface(SIOCGIFNETMASK)
    if gateway is None or mask is None:
        gateway, mask = DEFAULT
    return SandboxSubnet(IPv4Network(f"{gateway}/{mask}", strict=False), IPv4Address(gateway))


def _read_interface(request: int) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            response = fcntl.ioctl(probe.fileno(), request, struct.pack("256s", BRIDGE.encode()))
        except OSError:
            return None
    return socket.inet_ntoa(response[20:24])
