"""Numbered slots of this machine's network resources, each used by one engine at a time across all test runs.

A slot is a locked file. It is free again when the process that holds it ends, even if it is killed.
"""

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from tests.services import leases

SLOTS = Path("/tmp/aw-test-slots")
COUNT = 512
# Reserved for tests of network devices (RFC 2544), so neither networks nor Docker Engines use them by default.
NETWORKS = [*IPv4Network("198.18.0.0/15").subnets(new_prefix=24)]
# Not the former `awe`: older checkouts on this machine take the rest of such a name for a pid, and remove the bridge.
BRIDGE_PREFIX = "awslot"
# A route to a wider network is a default route, or a part of one.
SHORTEST_PREFIX = 8


class Slot:
    """A slot that this process holds, and its resources."""

    def __init__(self, number: int, descriptor: int) -> None:
        self.number = number
        self._descriptor = descriptor

    @property
    def address(self) -> str:
        """The loopback address of a door."""
        high, low = divmod(self.number, 256)
        return f"127.{18 + high}.{low}.1"

    @property
    def network(self) -> IPv4Network:
        """The network of containers."""
        return NETWORKS[self.number]

    @property
    def gateway(self) -> str:
        """The address at which the network's containers reach this machine."""
        return str(self.network[1])

    @property
    def bridge(self) -> str:
        """The name of the network's bridge."""
        return f"{BRIDGE_PREFIX}{self.number}"

    @property
    def hardware_address(self) -> str:
        """The hardware address of the bridge, derived from the gateway's address."""
        return ":".join(f"{byte:02x}" for byte in (0x02, 0x42, *self.network[1].packed))

    def release(self) -> None:
        """Release the slot."""
        os.close(self._descriptor)


@contextmanager
def taken_slot(is_usable: Callable[[Slot], bool] = lambda _: True) -> Iterator[Slot]:
    """Take a slot for the length of the block.

    Args:
        is_usable: a check of each free slot, which is held during the check.

    Raises:
        RuntimeError: no slot is free and usable.
    """
    slot = _take_any(is_usable)
    try:
        yield slot
    finally:
        slot.release()


def take_slot(number: int) -> Slot | None:
    """Take a slot; return None if another process holds it."""
    descriptor = leases.lock(SLOTS / str(number))
    return None if descriptor is None else Slot(number, descriptor)


def number_of(address: IPv4Address) -> int | None:
    """The number of the slot whose network has the address, or None."""
    return next((number for number, network in enumerate(NETWORKS) if address in network), None)


def is_unused(network: IPv4Network) -> bool:
    """Whether no address or route of this machine, and no network of its engine, is in the network."""
    return not any(network.overlaps(used) for used in [*_used_networks(), *_engine_networks()])


def _take_any(is_usable: Callable[[Slot], bool]) -> Slot:
    # In random order, because the engine of a killed process uses its network and ports until it has ended.
    for number in random.sample(range(COUNT), COUNT):
        slot = take_slot(number)
        if slot is not None and is_usable(slot):
            return slot
        if slot is not None:
            slot.release()
    raise RuntimeError(f"none of the {COUNT} slots in {SLOTS} is free and usable")


def _used_networks() -> list[IPv4Network]:
    addresses = [entry for link in _ip("address") for entry in link["addr_info"]]
    used = [IPv4Network(f"{entry['local']}/{entry['prefixlen']}", strict=False) for entry in addresses]
    routes = [IPv4Network(route["dst"]) for route in _ip("route", "show", "table", "all") if route["dst"] != "default"]
    return used + [route for route in routes if route.prefixlen >= SHORTEST_PREFIX]


def _engine_networks() -> list[IPv4Network]:
    """The networks of the machine's engine, if there is one. It may keep a network whose bridge is gone."""
    with suppress(OSError):
        names = _read("docker", "network", "ls", "--quiet").split()
        found = json.loads(_read("docker", "network", "inspect", *names) or "[]") if names else []
        subnets = [config["Subnet"] for each in found for config in each["IPAM"]["Config"] or ()]
        return [IPv4Network(subnet) for subnet in subnets if "." in subnet]
    return []


def _read(*command: str) -> str:
    return subprocess.run(command, check=False, capture_output=True, text=True).stdout


def _ip(*what: str) -> list[dict[str, Any]]:
    done = subprocess.run(["ip", "-4", "-json", *what], check=True, capture_output=True, text=True)
    found: list[dict[str, Any]] = json.loads(done.stdout or "[]")
    return found
