"""The routes of this machine: the network of the sandboxes must not be in use by another link."""

from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from worker.network.rules import Place

ROUTES = Path("/proc/net/route")
# A route of a wider network is a default route, or part of one.
SHORTEST_PREFIX = 8


def find_conflict(place: Place, routes: Path = ROUTES) -> str | None:
    """A route of another link to the network of the sandboxes, in words; None if there is none."""
    for line in routes.read_text().splitlines()[1:]:
        link, destination, _, _, _, _, _, mask, *_ = line.split()
        network = IPv4Network((_address(destination), str(_address(mask))))
        if link != place.bridge and network.prefixlen >= SHORTEST_PREFIX and network.overlaps(place.network):
            return f"{network} by {link}"
    return None


def _address(text: str) -> IPv4Address:
    return IPv4Address(bytes.fromhex(text)[::-1])
