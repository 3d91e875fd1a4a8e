"""Checks of the isolation between sandboxes on each node of a chaos run."""

from pathlib import Path

from tests.drills.bounds import Bounds
from tests.drills.chaos.site import INSTALLATION, NODES, Site


def bounds_of(site: Site, node: str) -> Bounds:
    """The isolation of a node's sandboxes."""
    var = Path(site.service.environment["AW_VAR_DIR"])
    return Bounds(
        site.engines[node],
        INSTALLATION,
        node,
        site.networks[node],
        site.service.door_port,
        var,
        miscounted=site.miscounted,
    )


def violations(site: Site) -> list[str]:
    """Every violation of the isolation, as a message.

    Raises:
        TransportError, HTTPStatusError: an engine does not respond.
    """
    database = site.service.database
    return [f"{node}: {each}" for node in NODES for each in bounds_of(site, node).violations(database)]
