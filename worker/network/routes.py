"""The routes of this machine: those to the sandboxes must lead through their bridge, and no other link."""

import socket
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from worker.network.rules import Place

ROUTES = Path("/proc/net/route")
# A route of a wider network is a default route, or part of one.
SHORTEST_PREFIX = 8
# Nothing is sent to it.
ANY_PORT = 9


def find_conflict(place: Place, routes: Path = ROUTES) -> str | None:
    """A route of another link to the network of the sandboxes, in words; None if there is none."""
    for line in routes.read_text().splitlines()[1:]:
        link, destination, _, _, _, _, _, mask, *_ = line.split()
        network = IPv4Network((_address(destination), str(_address(mask))))
        if link != place.bridge and network.prefixlen >= SHORTEST_PREFIX and network.overlaps(place.network):
            return f"{network} by {link}"
    return None


def find_route_problem(place: Place) -> str | None:
    """Why this machine cannot reach its sandboxes, in words; None if its route to them is their bridge's."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(place.network[-2]), ANY_PORT))
            found = f"the route to them starts at {(source := probe.getsockname()[0])}"
        except OSError as error:
            found, source = str(error.strerror), ""
    if source == place.gateway:
        return None
    return (
        f"this machine does not reach the sandboxes' addresses, {place.network}, by {place.bridge} ({found}): set that "
        f"link up with the address {place.gateway}, or restart the engine"
    )


def _address(text: str) -> IPv4Address:
    return IPv4Address(bytes.fromhex(text)[::-1])
