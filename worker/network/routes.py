"""The routes of this machine: those to the sandboxes must lead through their bridge, and no other link."""

import secrets
import socket
from errno import ECONNREFUSED
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from worker.network.rules import Bridge

ROUTES = Path("/proc/net/route")
# A route of a wider network is a default route, or part of one.
SHORTEST_PREFIX = 8
# No packet is sent to this port.
ANY_PORT = 9
# Enough for the kernel's second attempt to connect, which follows after a second.
REACH_SECONDS = 1.5
# Linux's option for the origin of errors (`ip(7)`). Python has no name for it.
IP_RECVERR = 11


def find_conflict(bridge: Bridge, routes: Path = ROUTES) -> str | None:
    """A route of another link to the network of the sandboxes, in words; None if there is none."""
    for line in routes.read_text().splitlines()[1:]:
        link, destination, _, _, _, _, _, mask, *_ = line.split()
        network = IPv4Network((_address(destination), str(_address(mask))))
        if link != bridge.name and network.prefixlen >= SHORTEST_PREFIX and network.overlaps(bridge.network):
            return f"{network} by {link}"
    return None


def find_route_problem(bridge: Bridge) -> str | None:
    """Why this machine cannot reach its sandboxes, in words; None if its route to them is their bridge's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(bridge.network[-2]), ANY_PORT))
            found = f"the route to them starts at {(source := probe.getsockname()[0])}"
        except OSError as error:
            found, source = str(error.strerror), ""
    if source == bridge.gateway:
        return None
    return (
        f"this machine does not reach the sandboxes' addresses, {bridge.network}, by {bridge.name} ({found}): set that "
        f"link up with the address {bridge.gateway}, or restart the engine"
    )


def is_reachable(address: str) -> bool:
    """Whether the kernel at a sandbox's address responds to a connection: programs in the sandbox can't prevent that.

    The port is random: no sandbox can keep connections waiting at all ports. A refusal by this machine's own firewall
    comes as ICMP, and is no response.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.settimeout(REACH_SECONDS)
        probe.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        result = probe.connect_ex((address, 1024 + secrets.randbelow(64_000)))
        return result == 0 or (result == ECONNREFUSED and not _has_icmp_error(probe))


def _has_icmp_error(probe: socket.socket) -> bool:
    # With another timeout, Python retries in a busy loop until it ends, despite MSG_DONTWAIT.
    probe.settimeout(0)
    try:
        probe.recvmsg(0, 1024, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT)
    except OSError:
        return False
    return True


def _address(text: str) -> IPv4Address:
    return IPv4Address(bytes.fromhex(text)[::-1])
