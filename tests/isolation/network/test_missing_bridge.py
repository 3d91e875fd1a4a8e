"""Requests to sandboxes whose bridge is gone. Another machine, behind the default route, has a sandbox's address.

Without the rules, that machine responds to the requests, which is the control. With the rules, it receives no packet.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from shared.agent_server.door import TOKEN_HEADER, open_access
from shared.crypto import Vault, new_secret_key
from tests.isolation.network import outside
from tests.isolation.network.proxy_testbed import (
    BRIDGE,
    LAN,
    NAMED,
    NETWORK,
    NODE,
    SERVICE,
    allowed,
    connect_machines,
    exchange,
    link_place,
    running_door,
)
from tests.isolation.network.stepped_program import SteppedProgram, running_program
from tests.services import processes
from tests.services.directories import short_directory
from tests.services.namespaces import Namespace, running_namespace
from tests.waiting import eventually
from worker.network.firewall import LocalFirewall

AGENT, KEY, SECRET_KEY = 80, "key of a sandbox", new_secret_key()
HEAD = f"Host: x\r\nConnection: close\r\nX-Session-API-Key: {KEY}\r\n"
# The door removes its token.
TO_DOOR = f"GET /{NAMED}/{AGENT}/x HTTP/1.1\r\n{TOKEN_HEADER}: {open_access(Vault([SECRET_KEY])).token}\r\n{HEAD}\r\n"
TO_SANDBOX = f"GET /x HTTP/1.1\r\n{HEAD}\r\n"
CONTAINER, NODE_TO_CONTAINER = "172.31.9.2", "172.31.9.1"
LOST = {
    "removed": f"ip link delete {BRIDGE.name}",
    "down": f"ip link set {BRIDGE.name} down",
    "without its address": f"ip address flush dev {BRIDGE.name}",
    "hidden by another route": f"ip route add {NAMED}/32 via {LAN}",
}
MAKE_BRIDGE = f"""
ip route delete {NAMED}/32
ip link delete {BRIDGE.name}
set -e
ip link add {BRIDGE.name} type bridge
ip address add {NODE}/24 dev {BRIDGE.name}
ip link set {BRIDGE.name} up
ip link set sandbox0 master {BRIDGE.name} up
"""
# Opens a connection, sends a request after a line of its input, and prints the first line of the response.
WAIT_AND_SEND = """
import socket, sys
plug = socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=60)
print("open", flush=True)
sys.stdin.readline()
plug.sendall(sys.argv[3].encode())
print("sent", flush=True)
print(plug.recv(65536).decode().splitlines()[0], flush=True)
"""


@dataclass(frozen=True)
class Node:
    """A node with a door, a container in another network of the machine, and the machine behind the default route.

    Args:
        door: the pid of the door.
    """

    machine: Namespace
    container: Namespace
    around: Namespace
    firewall: LocalFirewall
    door: int

    def request_door(self) -> str:
        """Send a request to the sandbox through the door."""
        return exchange(self.machine, "127.0.0.1", SERVICE, [TO_DOOR])[0]

    def request_sandbox(self) -> str:
        """Send a request to the sandbox's address."""
        return exchange(self.machine, NAMED, AGENT, [TO_SANDBOX])[0]

    def heard(self) -> int:
        """The number of packets to sandboxes that the other machine has received."""
        return self.around.counted_packets()

    def seconds_of_door(self) -> float:
        """The CPU time of the door."""
        user, system = Path(f"/proc/{self.door}/stat").read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

    def has_retransmitted(self) -> bool:
        """Whether the machine has retransmitted a packet to the sandbox."""
        return "backoff:" in self.machine.run("ss", "-tin", "dport", "=", f":{AGENT}")

    def is_served(self) -> bool:
        """Whether the sandbox responds through the door."""
        return KEY in self.request_door()


@pytest.fixture
def node() -> Iterator[Node]:
    with ExitStack() as stack:
        directory = stack.enter_context(short_directory("bridge"))
        machine, around, named, other, container = (stack.enter_context(running_namespace()) for _ in range(5))
        connect_machines(machine, around, named, other)
        link_place(machine, "container", container, CONTAINER)
        machine.run("ip", "address", "add", f"{NODE_TO_CONTAINER}/24", "dev", "container")
        machine.run("ip", "link", "set", "container", "up")
        container.run("ip", "route", "add", "default", "via", NODE_TO_CONTAINER)
        around.run("ip", "address", "add", f"{NAMED}/32", "dev", "lo")
        around.count_packets_to(NETWORK)
        for name, place in (("named", named), ("around", around)):
            log, requested = directory / f"{name}.log", directory / f"{name}.asked"
            server = processes.start(
                [*place.command, sys.executable, "-IS", outside.__file__, str(requested), "{}"], log
            )
            stack.callback(processes.stop, server)
            eventually(lambda log=log: "listening" in log.read_text(), deadline_seconds=30)  # type: ignore[misc]
        door = stack.enter_context(running_door(machine, directory, SECRET_KEY))
        yield Node(machine, container, around, LocalFirewall(BRIDGE, machine.command), door.pid)


@pytest.mark.parametrize("lost", LOST)
def test_no_packet_leaves_by_another_link(node: Node, lost: str) -> None:
    node.firewall.write(allowed(is_proxied=False))
    assert node.is_served()
    node.machine.run(*LOST[lost].split())
    spent = node.seconds_of_door()
    assert node.request_door().startswith("HTTP/1.1 503")
    assert node.seconds_of_door() - spent < 0.5, "it tries to connect in a busy loop"
    assert node.request_sandbox() == ""
    assert node.container.probe([("tcp", NAMED, AGENT)]) == [False]
    assert node.heard() == 0

    node.firewall.remove()
    assert KEY in node.request_sandbox()
    before = node.heard()
    node.container.probe([("tcp", NAMED, AGENT)])
    assert node.heard() > before

    node.firewall.write(allowed(is_proxied=False))
    node.machine.run("sh", "-c", MAKE_BRIDGE)
    eventually(node.is_served, deadline_seconds=30)


# In the other cases the kernel itself sends nothing: the connection's local address is gone.
@pytest.mark.parametrize("lost", ["down", "hidden by another route"])
def test_open_connection_waits_for_the_bridge(node: Node, lost: str) -> None:
    node.firewall.write(allowed(is_proxied=False))
    with open_connection(node.machine) as first, open_connection(node.machine) as second:
        node.machine.run(*LOST[lost].split())
        assert first.step() == "sent"
        assert node.request_door().startswith("HTTP/1.1 503")
        eventually(node.has_retransmitted, deadline_seconds=30)
        assert node.heard() == 0
        node.machine.run("sh", "-c", MAKE_BRIDGE)
        assert first.read() == "HTTP/1.1 200 OK"

        node.machine.run(*LOST[lost].split())
        node.firewall.remove()
        assert second.step() == "sent"
        eventually(lambda: node.heard() > 0, deadline_seconds=30)


def test_door_sends_nothing_before_there_are_rules(node: Node) -> None:
    """As after a reboot: the rules are gone, and the engine has not created the bridge yet."""
    node.machine.run(*LOST["removed"].split())
    assert node.request_door().startswith("HTTP/1.1 503")
    assert node.heard() == 0
    assert KEY in node.request_sandbox()
    node.machine.run("sh", "-c", MAKE_BRIDGE)
    eventually(node.is_served, deadline_seconds=30)


def test_removed_rule_is_detected(node: Node) -> None:
    node.firewall.write(allowed(is_proxied=False))
    assert node.firewall.read() is not None
    node.machine.run("nft", "flush", "chain", "inet", BRIDGE.name, "output")
    assert node.firewall.read() is None


@contextmanager
def open_connection(place: Namespace) -> Iterator[SteppedProgram]:
    """Open a connection to the sandbox, and end it after the block.

    A step sends a request; the kernel repeats the packet until it is received.
    """
    with running_program(place, WAIT_AND_SEND, NAMED, str(AGENT), TO_SANDBOX) as connection:
        assert connection.read() == "open"
        yield connection
