"""What keeps sandboxes apart at rest: firewall rules, disks and doors, by `nft`, `docker`, `losetup` and the wire."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx

from shared.nodes import registry
from shared.settings import Settings
from tests.drills.chaos.site import INSTALLATION, NODES, Site
from tests.drills.engine_listing import NAME_PREFIX, SANDBOX_LABEL, sandbox_name
from tests.services import http
from worker.network.addresses import make_place, network_name
from worker.network.rules import Place


def place_of(site: Site, node: str) -> Place:
    """The bridge and the network of a node's sandboxes."""
    return make_place(Settings(sandbox_addresses=site.networks[node]), INSTALLATION, node)


def disk_image(site: Site, node: str, sandbox_id: str) -> Path:
    """The file with a sandbox's disk."""
    return _images(site, node) / f"{sandbox_name(sandbox_id)}.img"


def violations(site: Site) -> list[str]:
    """What is not as it must be, in words.

    Raises:
        AssertionError: an engine does not answer.
    """
    found = [f"{node}: {each}" for node in NODES for check in CHECKS for each in check(site, node)]
    with site.service.database.reading() as session:
        closed = {node.id: node.closed_reason for node in registry.list_nodes(session) if node.closed_reason}
    return found + [f"{node} is closed: {reason}" for node, reason in closed.items()]


def _wrong_rules(site: Site, node: str) -> Iterator[str]:
    """The sandboxes that the rules know are those whose containers have an address."""
    place = place_of(site, node)
    known = _listed(place)
    if known is None:
        yield "its firewall rules are gone"
        return
    addresses = _addresses(site, node, network_name(place))
    if known != addresses:
        yield f"its firewall rules know {sorted(known - addresses)} too much and {sorted(addresses - known)} too little"


def _wrong_disks(site: Site, node: str) -> Iterator[str]:
    """Each sandbox's volume has its disk, and each disk its volume; no removed disk has a loop device."""
    images = {path.stem for path in _images(site, node).glob("*.img")}
    volumes = {name for name in site.engines[node].volumes() if name.startswith(NAME_PREFIX)}
    if images != volumes:
        yield f"disks without a volume: {sorted(images - volumes)}; volumes without one: {sorted(volumes - images)}"
    loops = json.loads(_run("losetup", "--list", "--json", "--output", "NAME,BACK-FILE") or "{}")
    for loop in loops.get("loopdevices", ()):
        if loop["back-file"].startswith(str(_images(site, node))) and loop["back-file"].endswith("(deleted)"):
            yield f"{loop['name']} holds a disk that is removed: {loop['back-file']}"


def _shut_door(site: Site, node: str) -> Iterator[str]:
    """The door answers, and refuses requests without its token."""
    address = f"http://{site.engines[node].address}:{site.service.door_port}"
    try:
        status = http.get(f"{address}/{site.networks[node][2]}/8000/alive", timeout=5).status_code
    except httpx.TransportError as error:
        yield f"its door does not answer: {error!r}"
        return
    if status != 403:
        yield f"its door answers {status} without a token"


CHECKS = (_wrong_rules, _wrong_disks, _shut_door)


def _listed(place: Place) -> set[str] | None:
    """The addresses in the set of sandboxes; None: a table is not there."""
    for family in ("bridge", "inet"):
        command = ["nft", "--json", "list", "table", family, place.bridge]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return None
    sets = {
        item["set"]["name"]: item["set"].get("elem", [])
        for item in json.loads(done.stdout)["nftables"]
        if "set" in item
    }
    return set(sets["sandboxes"])


def _addresses(site: Site, node: str, network: str) -> set[str]:
    engine = site.engines[node]
    if not (names := engine.docker("ps", "--quiet", "--filter", f"label={SANDBOX_LABEL}").split()):
        return set()
    address = f'{{{{with index .NetworkSettings.Networks "{network}"}}}}{{{{.IPAddress}}}}{{{{end}}}}'
    return set(engine.docker("inspect", "--format", address, *names).split())


def _images(site: Site, node: str) -> Path:
    return site.engines[node].data / "agent-workspace" / INSTALLATION


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
