"""A sandbox that opens as many flows as it can: it does not fill the node's table of connections.

Each test sends a bounded number of packets, within network namespaces, each of which has its own table.
"""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.isolation.network.proxy_testbed import BRIDGE, LAN, NAMED, OTHER, connect_machines
from tests.services.directories import short_directory
from tests.services.namespaces import Namespace, running_namespace
from worker.network.firewall import LocalFirewall
from worker.network.rules import MAX_FLOWS, Allowed, element

WEB = 80
NETWORKS = frozenset(element(each, "192.168.78.0/24") for each in (NAMED, OTHER))
ALLOWED = Allowed(sandboxes=frozenset({NAMED, OTHER}), networks=NETWORKS)
COUNT = "/proc/sys/net/netfilter/nf_conntrack_count"
# Sends a datagram to each of many ports; then opens a TCP connection, and prints whether it got one.
DATAGRAMS = """
import json, socket, sys
host, web, last = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plug:
    for port in range(1000, 1000 + last):
        plug.sendto(b"?", (host, port))
try:
    socket.create_connection((host, web), timeout=5).close()
    print(json.dumps(""))
except OSError as error:
    print(json.dumps(type(error).__name__))
"""
# Opens and closes connections, one after the other; prints how many it got.
CONNECTIONS = """
import json, socket, sys
host, web, most, opened = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 0
for _ in range(most):
    try:
        with socket.create_connection((host, web), timeout=5) as plug:
            plug.recv(4)
            opened += 1
    except ConnectionRefusedError:
        pass
print(json.dumps(opened))
"""


@dataclass(frozen=True)
class Node:
    """A node with two sandboxes, and a server on its LAN."""

    machine: Namespace
    attacker: Namespace
    other: Namespace
    firewall: LocalFirewall

    def flows(self) -> int:
        """The entries of the node's table."""
        return int(self.machine.run("cat", COUNT))

    def attack(self, program: str, times: int) -> str | int:
        """Run a program in the attacker's sandbox."""
        found: str | int = json.loads(self.attacker.run("python3", "-IS", "-c", program, LAN, str(WEB), str(times)))
        return found


@pytest.fixture
def node() -> Iterator[Node]:
    with ExitStack() as stack:
        directory = stack.enter_context(short_directory("flows"))
        machine, around, attacker, other = (stack.enter_context(running_namespace()) for _ in range(4))
        connect_machines(machine, around, attacker, other)
        stack.enter_context(around.listening(directory / "log", WEB, addresses=[LAN]))
        yield Node(machine, attacker, other, LocalFirewall(BRIDGE, machine.command))


def test_datagrams_to_many_ports_do_not_fill_the_table(node: Node) -> None:
    node.firewall.write(ALLOWED)
    assert node.attack(DATAGRAMS, 3 * MAX_FLOWS) == "ConnectionRefusedError"
    assert MAX_FLOWS <= node.flows() < MAX_FLOWS + 100
    assert node.other.probe([("tcp", LAN, WEB)]) == [True]
    assert node.machine.probe([("tcp", LAN, WEB)]) == [True]
    assert node.firewall.read() == ALLOWED, "what the kernel counts is no change of the rules"


def test_control_flows_without_limits_fill_the_table(node: Node) -> None:
    node.firewall.write(ALLOWED)
    node.machine.run("nft", "flush", "chain", "inet", BRIDGE.name, "count_flows")
    assert node.attack(DATAGRAMS, 3 * MAX_FLOWS) == ""
    assert node.flows() >= 3 * MAX_FLOWS
    assert node.attack(CONNECTIONS, 3 * MAX_FLOWS) == 3 * MAX_FLOWS
    assert node.flows() > 2 * MAX_FLOWS  # whether or not the datagrams' entries have expired


def test_closed_connections_do_not_fill_the_table(node: Node) -> None:
    """A closed connection stays in the table for two minutes, and the kernel does not count it as a flow."""
    node.firewall.write(ALLOWED)
    opened = node.attack(CONNECTIONS, 3 * MAX_FLOWS)
    assert isinstance(opened, int)
    assert MAX_FLOWS <= opened < 3 * MAX_FLOWS
    assert node.other.probe([("tcp", LAN, WEB)]) == [True]
    assert node.firewall.read() == ALLOWED
