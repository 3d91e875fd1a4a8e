"""What keeps the sandboxes of a chaos run apart, on each of its nodes."""

from pathlib import Path

from tests.drills.bounds import Bounds
from tests.drills.chaos.site import INSTALLATION, NODES, Site


def bounds_of(site: Site, node: str) -> Bounds:
    """Those of a node."""
    var = Path(site.service.environment["AW_VAR_DIR"])
    return Bounds(site.engines[node], INSTALLATION, node, site.networks[node], site.service.door_port, var)


def violations(site: Site) -> list[str]:
    """What is not as it must be, in words.

    Raises:
        TransportError, HTTPStatusError: an engine does not answer.
    """
    database = site.service.database
    return [f"{node}: {each}" for node in NODES for each in bounds_of(site, node).violations(database)]
