"""The routes of a machine to its sandboxes, in a namespace of its own."""

import sys
from collections.abc import Iterator
from ipaddress import IPv4Network

import pytest

from tests.services.namespaces import Namespace, running_namespace
from worker.network.rules import Place

PLACE = Place("br-awtest", IPv4Network("10.213.0.0/20"))
ASK = """
from ipaddress import IPv4Network
from worker.network.routes import find_route_problem
from worker.network.rules import Place
print(find_route_problem(Place("br-awtest", IPv4Network("10.213.0.0/20"))) or "none", end="")
"""


@pytest.fixture
def node() -> Iterator[Namespace]:
    """A machine whose bridge is as the engine makes it, and which has a default route."""
    with running_namespace() as node:
        node.run("ip", "link", "add", PLACE.bridge, "type", "bridge")
        node.run("ip", "address", "add", f"{PLACE.gateway}/20", "dev", PLACE.bridge)
        node.run("ip", "link", "set", PLACE.bridge, "up")
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
def test_bridge_that_others_change_is_named(node: Namespace, change: str) -> None:
    node.run(*change.split())
    assert "by br-awtest (the route to them starts at 192.0.2.1)" in found(node)


def test_machine_without_any_route_says_so(node: Namespace) -> None:
    node.run("ip", "link", "set", "br-awtest", "down")
    node.run("ip", "route", "delete", "default")
    assert "(Network is unreachable)" in found(node)
