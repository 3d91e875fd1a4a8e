"""The networks around the sandboxes: another machine, a metadata service, a public address. Nothing leaves the machine.

They are in a network namespace behind a pair of virtual interfaces. A separate routing table sends only packets from
the sandboxes' bridges there, so this machine's own metadata service stays reachable for its programs.
"""

import json
import os
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.isolation.places import PROBES, inside_namespace
from tests.services.namespaces import NAMESPACES
from tests.services.slots import Slot, is_unused, take_slot, taken_slot

METADATA = "169.254.169.254"
# A public address, which is simulated only for the sandboxes' packets.
PUBLIC = "25.25.25.25"
# Of the names of namespaces and virtual interfaces, before the number of the slot.
NAMESPACE, PREFIX = "aw-lan-", "awlan"
TABLE = 21_000
STREAMS = (80, 443, 8080)


@dataclass(frozen=True)
class Lan:
    """Another machine of the node's network, and the networks behind it.

    Args:
        namespace: the name of its network namespace.
        address: its address.
        host: this machine's address in the same network.
    """

    namespace: str
    address: str
    host: str


@contextmanager
def other_machine(bridges: Sequence[str]) -> Iterator[Lan]:
    """Start the other machine for the length of the block, and let packets from these bridges pass the firewall.

    The tests' engine writes no firewall rules. These rules are like an engine's, so only the service's own rules can
    keep a sandbox from its neighbours and from networks.
    """
    remove_abandoned()
    with taken_slot(lambda slot: is_unused(slot.network)) as slot, ExitStack() as stack:
        lan = Lan(f"{NAMESPACE}{slot.number}", str(slot.network[2]), str(slot.network[1]))
        link = f"{PREFIX}{slot.number}"
        stack.callback(_remove, slot.number)
        _build(lan, link, slot)
        for bridge in bridges:
            _route_from(bridge, link, lan, TABLE + slot.number)
        for rule in _firewall_rules([*bridges, link]):
            _run("iptables", "--wait", "--insert", *rule, check=False)
        with listening(inside_namespace(lan.namespace), _listeners(), _heard(slot.number)):
            yield lan


@contextmanager
def listening(command: Sequence[str], listeners: Sequence[tuple[str, str, int]], heard: Path) -> Iterator[None]:
    """Run listeners for the length of the block; `command` is the prefix that runs them at a place."""
    program = (PROBES / "listen.py").read_text()
    arguments = [*command, "/usr/bin/python3", "-c", program, json.dumps(listeners), str(heard)]
    # The path is in the environment too: attacks on environments find it there when run outside a sandbox.
    environment = {**os.environ, "HEARD": str(heard)}
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "listening\n"
            yield
        finally:
            running.kill()
            with suppress(FileNotFoundError):
                heard.unlink()


def route_to(address: str) -> dict[str, Any]:
    """The route from this machine to an address: its device and source address."""
    found: dict[str, Any] = json.loads(_output("ip", "-json", "route", "get", address))[0]
    return found


def remove_abandoned() -> None:
    """Remove the networks of runs that were killed: those of slots that no process holds.

    The interface would keep its slot from being used again.
    """
    for namespace in NAMESPACES.glob(f"{NAMESPACE}*"):
        if slot := take_slot(int(namespace.name.removeprefix(NAMESPACE))):
            _remove(slot.number)
            slot.release()


def _build(lan: Lan, link: str, slot: Slot) -> None:
    length = slot.network.prefixlen
    inside = ("ip", "-n", lan.namespace)
    _run("ip", "netns", "add", lan.namespace)
    _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", lan.namespace)
    _run("ip", "address", "add", f"{lan.host}/{length}", "dev", link)
    _run("ip", "link", "set", link, "up")
    _run(*inside, "address", "add", f"{lan.address}/{length}", "dev", "eth0")
    _run(*inside, "link", "add", "others", "type", "bridge")
    for address in (METADATA, PUBLIC):
        _run(*inside, "address", "add", f"{address}/32", "dev", "others")
    _run(*inside, "link", "add", "spare", "type", "bridge")
    for device in ("lo", "eth0", "others", "spare"):
        _run(*inside, "link", "set", device, "up")
    _run(*inside, "route", "add", "default", "via", lan.host)
    pings = "net.ipv4.ping_group_range=0 0"
    _run(*inside_namespace(lan.namespace), "sysctl", "-w", pings)


def _route_from(bridge: str, link: str, lan: Lan, table: int) -> None:
    for address in (METADATA, PUBLIC):
        _run("ip", "route", "replace", address, "via", lan.address, "dev", link, "table", str(table))
    _run("ip", "rule", "add", "iif", bridge, "lookup", str(table))


def _firewall_rules(devices: Iterable[str]) -> list[Sequence[str]]:
    directions = ("--in-interface", "--out-interface")
    return [("DOCKER-USER", direction, device, "--jump", "ACCEPT") for device in devices for direction in directions]


def _remove(number: int) -> None:
    """Remove everything, the namespace last: by its name, a sweep finds what is left if this process is killed."""
    table = str(TABLE + number)
    bridges = [rule["iif"] for rule in json.loads(_output("ip", "-json", "rule", "show", "table", table) or "[]")]
    for rule in _firewall_rules([*bridges, f"{PREFIX}{number}"]):
        _run("iptables", "--wait", "--delete", *rule, check=False)
    for bridge in bridges:
        _run("ip", "rule", "delete", "iif", bridge, "lookup", table)
    # The interface stays as long as a process is in the namespace.
    for pid in _output("ip", "netns", "pids", f"{NAMESPACE}{number}", check=False).split():
        _run("kill", "-KILL", pid, check=False)
    _run("ip", "link", "delete", f"{PREFIX}{number}", check=False)
    _heard(number).unlink(missing_ok=True)
    _run("ip", "netns", "delete", f"{NAMESPACE}{number}", check=False)


def _heard(number: int) -> Path:
    """What the listeners have heard."""
    return Path(f"/tmp/aw-heard-{number}")


def _listeners() -> list[tuple[str, str, int]]:
    streams = [("tcp", "0.0.0.0", port) for port in STREAMS]
    # A response has the right source address only if the socket is bound to that address.
    datagrams = [(kind, host, port) for kind, port in (("dns", 53), ("udp", 5001)) for host in (METADATA, PUBLIC)]
    return [*streams, *datagrams, ("dns", "0.0.0.0", 53), ("udp", "0.0.0.0", 5001)]


def _run(*command: str, check: bool = True) -> bool:
    return subprocess.run(command, check=check, capture_output=True).returncode == 0


def _output(*command: str, check: bool = True) -> str:
    return subprocess.run(command, check=check, capture_output=True, text=True).stdout
