"""Firewall rules that an installation has left behind, in a namespace of its own."""

from collections.abc import Iterator
from ipaddress import IPv4Network

import pytest

from tests.services.namespaces import Namespace, running_namespace
from worker.network.firewall import FirewallError, LocalFirewall
from worker.network.rules import Allowed, Bridge

BRIDGE = Bridge("br-awtest", IPv4Network("10.213.0.0/20"))
FORMER = "br-awformer"


@pytest.fixture
def node() -> Iterator[Namespace]:
    with running_namespace() as node:
        yield node


@pytest.fixture
def firewall(node: Namespace) -> LocalFirewall:
    return LocalFirewall(BRIDGE, node.command)


def leave_rules(node: Namespace, network: str) -> None:
    LocalFirewall(Bridge(FORMER, IPv4Network(network)), node.command).write(Allowed())


@pytest.mark.parametrize("network", ["10.213.0.0/20", "10.213.0.0/16", "10.213.8.0/24"])
def test_rules_of_an_earlier_installation_at_the_same_addresses_are_named(
    node: Namespace, firewall: LocalFirewall, network: str
) -> None:
    leave_rules(node, network)
    with pytest.raises(FirewallError, match=r"^AW_SANDBOX_ADDRESSES is 10\.213\.0\.0/20, and .* another installation"):
        firewall.write(Allowed())
    assert firewall.read() is None


def test_commands_of_the_message_remove_the_rules(node: Namespace, firewall: LocalFirewall) -> None:
    leave_rules(node, "10.213.0.0/20")
    with pytest.raises(FirewallError) as refusal:
        firewall.write(Allowed())
    commands = [part for part in str(refusal.value).split("`") if part.startswith("nft ")]
    assert len(commands) == 2
    for command in commands:
        node.run(*command.split())
    firewall.write(Allowed())
    assert firewall.read() == Allowed()


def test_foreign_rules_at_other_addresses_are_kept(node: Namespace, firewall: LocalFirewall) -> None:
    leave_rules(node, "10.213.16.0/20")
    node.run("nft", "add table ip br-awlike; add table bridge docker; add table bridge br-awempty")
    firewall.write(Allowed())
    firewall.write(Allowed(sandboxes=frozenset({"10.213.0.2"})))
    assert FORMER in node.run("nft", "list", "tables")
