"""Checks of the isolation between sandboxes: firewall rules, disks and doors, read by `nft`, the engine and HTTP."""

import calendar
import json
import re
import subprocess
import time
from collections.abc import Collection, Container, Iterator
from dataclasses import dataclass
from functools import cached_property
from ipaddress import IPv4Network
from math import inf
from pathlib import Path

import httpx
from sqlmodel import select

from shared.db.database import Database
from shared.models import Node, Sandbox
from shared.settings import Settings
from shared.states import Reason, Status
from tests.drills.engine_listing import NAME_PREFIX, sandbox_name
from tests.drills.engine_socket import EngineSocket
from tests.services import http
from tests.services.deployment_settings import BOUNDED
from tests.services.private_engine import PrivateEngine
from worker.network.addresses import make_bridge, network_name
from worker.network.proxy import PROXY_LABEL
from worker.network.rules import Bridge

LOOPS = Path("/sys/block")
DELETED = " (deleted)"
IN_UTC = {"LC_ALL": "C", "TZ": "UTC0"}


def read_from_image(image: Path, path: str) -> str:
    """The contents of a file on an unmounted disk; empty if there is no such file."""
    command = ["/usr/sbin/debugfs", "-R", f"cat /{path}", str(image)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@dataclass(frozen=True)
class Bounds:
    """The isolation between the sandboxes of one node."""

    engine: PrivateEngine
    installation: str
    node: str
    # The sandboxes' network.
    network: IPv4Network
    door_port: int
    # The worker's var directory.
    var: Path
    egress_port: int = 3003
    # The volumes whose records Docker may keep without a disk.
    miscounted: Collection[str] = ()

    @property
    def settings(self) -> dict[str, str]:
        """The settings of the node's worker and door that produce this isolation."""
        return BOUNDED | {"AW_SANDBOX_ADDRESSES": str(self.network), "AW_EGRESS_PORT": str(self.egress_port)}

    @cached_property
    def bridge(self) -> Bridge:
        """The bridge and the network of the sandboxes."""
        return make_bridge(Settings(sandbox_addresses=self.network), self.installation, self.node)

    @cached_property
    def _socket(self) -> EngineSocket:
        return EngineSocket(self.engine.host)

    @property
    def images(self) -> Path:
        """The directory of the sandboxes' disks."""
        return self.engine.data / "agent-workspace" / self.installation

    def disk_image(self, sandbox_id: str) -> Path:
        """The image file of a sandbox's disk."""
        return self.images / f"{sandbox_name(sandbox_id)}.img"

    def read_file(self, sandbox_id: str, path: str) -> str:
        """The contents of a sandbox's file; empty if there is no such file.

        The engine mounts a disk only while the container runs. Otherwise read the file from the image.
        """
        mounted = self.engine.data / "volumes" / sandbox_name(sandbox_id) / "_data" / path
        if mounted.exists():
            return mounted.read_text()
        image = self.disk_image(sandbox_id)
        return read_from_image(image, path) if image.exists() else ""

    def lost_writes_until(self, sandbox_id: str) -> float:
        """When the kernel last lost what programs had stored on the sandbox's disk, because the node's disk was full.

        In seconds since the epoch, rounded up; 0: never; infinity: it has not mounted the disk since.
        """
        command = ["/usr/sbin/dumpe2fs", "-h", str(self.disk_image(sandbox_id))]
        shown = subprocess.run(command, capture_output=True, text=True, check=False, env=IN_UTC).stdout
        if "Journal errno:" in shown:
            return inf
        last = re.search(r"^Last error time: +(.+)$", shown, re.MULTILINE)
        return calendar.timegm(time.strptime(last[1].strip())) + 1 if last else 0.0

    def flush_rules(self) -> None:
        """Remove the firewall tables; only the service restores them.

        Raises:
            AssertionError: the tables do not exist.
        """
        for family in ("inet", "bridge"):
            command = ["nft", "delete", "table", family, self.bridge.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr

    def violations(self, database: Database) -> list[str]:
        """Every violation of the isolation, as a message.

        Raises:
            TransportError, HTTPStatusError: the engine does not respond.
        """
        quarantined = _quarantined(database)
        return [
            *self._wrong_rules(quarantined),
            *self._wrong_names(quarantined),
            *self._wrong_disks(),
            *self._shut_door(),
            *self._closed(database),
        ]

    def _wrong_rules(self, quarantined: Container[str]) -> Iterator[str]:
        """Check that the rules list exactly the addresses of running containers."""
        known = self._known_to_rules()
        if known is None:
            yield "its firewall rules are gone"
            return
        addresses = self._addresses(quarantined)
        if known != addresses:
            missing = sorted(addresses - known)
            yield f"its firewall rules list {sorted(known - addresses)} wrongly and lack {missing}"

    def _known_to_rules(self) -> set[str] | None:
        """The addresses in the set of sandboxes of the rules; None: a table is missing."""
        for family in ("bridge", "inet"):
            command = ["nft", "--json", "list", "table", family, self.bridge.name]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return None
        sets = {
            item["set"]["name"]: item["set"].get("elem", [])
            for item in json.loads(done.stdout)["nftables"]
            if "set" in item
        }
        return set(sets["sandboxes"])

    def _wrong_names(self, quarantined: Container[str]) -> Iterator[str]:
        """Check that the egress proxy has a file for exactly the sandboxes that may use it."""
        folder = self.var / "run" / "egress" / self.bridge.gateway
        listed = {path.name for path in folder.glob("[!.]*") if path.read_text()}
        addresses = self._addresses(quarantined, PROXY_LABEL)
        if listed != addresses:
            yield f"the egress proxy has files for {sorted(listed)} instead of {sorted(addresses)}"

    def _addresses(self, quarantined: Container[str], label: str = "") -> set[str]:
        found = self._socket.addresses(network_name(self.bridge), label)
        return {address for name, address in found.items() if name not in quarantined}

    def _wrong_disks(self) -> Iterator[str]:
        """Check that each volume has a disk, each disk has a volume, and no removed disk has a loop device."""
        files = {path.name for path in self.images.glob("aw-*")}
        held = self._socket.holdings()
        own = [volume for volume in held.volumes if self.installation in volume.labels.values()]
        wanted = {f"{volume.name}.img" for volume in own if volume.name.startswith(NAME_PREFIX)}
        wanted -= {f"{name}.img" for name in self.miscounted} - files
        if files != wanted:
            yield f"disks without a volume: {sorted(files - wanted)}; volumes without one: {sorted(wanted - files)}"
        for loop in LOOPS.glob("loop*/loop/backing_file"):
            backing = _read(loop)
            if backing.startswith(f"{self.images}/") and backing.endswith(DELETED):
                yield f"{loop.parts[3]} is attached to a removed disk: {backing}"

    def _shut_door(self) -> Iterator[str]:
        """Check that the door responds, and refuses requests without its token."""
        address = f"http://{self.engine.address}:{self.door_port}"
        try:
            status = http.get(f"{address}/{self.network[2]}/8000/alive", timeout=5).status_code
        except httpx.TransportError as error:
            yield f"its door does not respond: {error!r}"
            return
        if status != 403:
            yield f"its door responds with {status} to a request without a token"

    def _closed(self, database: Database) -> Iterator[str]:
        with database.reading() as session:
            found = session.get_one(Node, self.node).closed_reason
        if found:
            yield f"the node accepts no work: {found}"


def _quarantined(database: Database) -> set[str]:
    """The names of the quarantined containers (decision 47)."""
    foreign = select(Sandbox.id).where(Sandbox.status == Status.DELETED, Sandbox.reason == Reason.ALREADY_USED)
    with database.reading() as session:
        return {sandbox_name(each) for each in session.exec(foreign)}


def _read(path: Path) -> str:
    """The contents of a file of the kernel; empty if the device has just been removed."""
    try:
        return path.read_text().rstrip("\n")
    except OSError:
        return ""
