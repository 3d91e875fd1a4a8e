"""The routes of a machine to its sandboxes, in a namespace of its own."""

import subprocess
import sys
from collections.abc import Iterator
from ipaddress import IPv4Network

import pytest

from tests.services.namespaces import Namespace, running_namespace
from worker.network.rules import Allowed, Bridge, ruleset

BRIDGE = Bridge("br-awtest", IPv4Network("10.213.0.0/20"))
ASK = """
from ipaddress import IPv4Network
from worker.network.routes import find_route_problem
from worker.network.rules import Bridge
print(find_route_problem(Bridge("br-awtest", IPv4Network("10.213.0.0/20"))) or "none", end="")
"""


@pytest.fixture
def node() -> Iterator[Namespace]:
    """A machine with a bridge like that which the engine creates, and with a default route."""
    with running_namespace() as node:
        node.run("ip", "link", "add", BRIDGE.name, "type", "bridge")
        node.run("ip", "address", "add", f"{BRIDGE.gateway}/20", "dev", BRIDGE.name)
        node.run("ip", "link", "set", BRIDGE.name, "up")
        node.run("ip", "link", "add", "eth1", "type", "bridge")
        node.run("ip", "address", "add", "192.0.2.1/24", "dev", "eth1")
        node.run("ip", "link", "set", "eth1", "up")
        node.run("ip", "route", "add", "default", "via", "192.0.2.9")
        yield node


def found(node: Namespace) -> str:
    return node.run(sys.executable, "-c", ASK)


def test_bridge_without_containers_is_no_route_problem(node: Namespace) -> None:
    assert found(node) == "none"


@pytest.mark.parametrize(
    "change",
    [
        "ip link set br-awtest down",
        "ip link delete br-awtest",
        "ip address flush dev br-awtest",
        "ip route add 10.213.15.0/24 dev eth1",
    ],
)
def test_bridge_changed_by_other_programs_is_named(node: Namespace, change: str) -> None:
    node.run(*change.split())
    assert "by br-awtest (the route to them starts at 192.0.2.1)" in found(node)


def test_machine_without_a_route_has_a_route_problem(node: Namespace) -> None:
    node.run("ip", "link", "set", "br-awtest", "down")
    node.run("ip", "route", "delete", "default")
    assert "(Network is unreachable)" in found(node)


SANDBOX = "10.213.0.2"
REACH = f"from worker.network.routes import is_reachable; print(is_reachable('{SANDBOX}'), end='')"
OUTPUT = "add table ip t; add chain ip t o {{ type filter hook output priority 0; policy {policy}; }}; "


@pytest.fixture
def sandbox(node: Namespace) -> Iterator[Namespace]:
    """A sandbox's network, linked to the node's bridge, where the service's own rules apply. No program runs in it."""
    with running_namespace() as sandbox:
        ends = ("netns", node.path.name, "type", "veth", "peer", "eth0", "netns", sandbox.path.name)
        subprocess.run(["ip", "link", "add", "port0", *ends], check=True, capture_output=True)
        node.run("ip", "link", "set", "port0", "master", BRIDGE.name, "up")
        sandbox.run("ip", "address", "add", f"{SANDBOX}/20", "dev", "eth0")
        sandbox.run("ip", "link", "set", "eth0", "up")
        node.run("nft", "-f", "-", text=ruleset(BRIDGE, Allowed(sandboxes=frozenset({SANDBOX}))))
        yield sandbox


def is_reached(node: Namespace) -> bool:
    return node.run(sys.executable, "-c", REACH) == "True"


def test_sandbox_without_programs_is_reached(node: Namespace, sandbox: Namespace) -> None:
    assert sandbox.path
    assert is_reached(node)


def test_refusal_is_an_immediate_response(node: Namespace, sandbox: Namespace) -> None:
    assert sandbox.path
    program = f"from worker.network import routes; routes.REACH_SECONDS = 3600; print(routes.is_reachable('{SANDBOX}'))"
    assert node.run("timeout", "30", sys.executable, "-c", program) == "True\n"


@pytest.mark.parametrize(
    "rules",
    [
        OUTPUT.format(policy="drop"),
        OUTPUT.format(policy="accept") + f"add rule ip t o ip daddr {SANDBOX} reject",
        OUTPUT.format(policy="accept") + f"add rule ip t o ip daddr {SANDBOX} reject with icmp admin-prohibited",
        "add table ip t; add chain ip t i { type filter hook input priority 0; policy drop; }",
    ],
    ids=["drop", "reject", "prohibit", "drop responses"],
)
def test_sandbox_behind_a_firewall_of_the_machine_is_not_reached(
    node: Namespace, sandbox: Namespace, rules: str
) -> None:
    assert sandbox.path
    node.run("nft", rules)
    assert not is_reached(node)


def test_sandbox_that_is_not_linked_to_the_bridge_is_not_reached(node: Namespace, sandbox: Namespace) -> None:
    assert sandbox.path
    node.run("ip", "link", "set", "port0", "nomaster")
    assert not is_reached(node)
