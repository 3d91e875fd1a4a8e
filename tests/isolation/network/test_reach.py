"""Access from and to sandboxes. In the control without rules, everything is reached."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shared.nodes import model_servers
from shared.sandboxes import specs
from tests.isolation.network.testbed import (
    AGENT,
    CLOSED,
    DNS,
    LAN,
    LISTED,
    METADATA,
    MODEL,
    NETWORK,
    OPEN,
    TARGETS,
    WEB,
    IsolationFromOutside,
    NetworkTestbed,
    name_model,
    probe,
    start_sandbox,
)
from tests.services.namespaces import Namespace, Target
from tests.waiting import eventually
from worker.engine.protocol import EngineUnavailable
from worker.network.rules import Allowed
from worker.sandboxes.container_spec import container_name

SANDBOXES = {OPEN, CLOSED, LISTED}
ALWAYS = {"the service"}
OF_OPEN = {"a public address", "a public resolver", "the resolver", "the resolver by TCP"}
OF_LISTED = {"another private network"}
MODEL_SERVER = f"{LAN}:{MODEL}"
OF_METADATA: dict[str, Target] = {
    "its resolver": ("udp", METADATA, DNS),
    "its resolver by TCP": ("tcp", METADATA, DNS),
    "metadata": ("tcp", METADATA, WEB),
}


def test_sandboxes_reach_the_egress_of_their_specs_and_owners(testbed: NetworkTestbed) -> None:
    control(testbed)
    testbed.isolation.refresh()
    assert testbed.isolation.check() is None
    assert testbed.reached_by_each() == {OPEN: ALWAYS | OF_OPEN, CLOSED: ALWAYS, LISTED: ALWAYS | OF_LISTED}
    assert testbed.reached_from(testbed.node) == SANDBOXES | {"the service"}
    assert testbed.reached_from(testbed.lan) == set()

    name_model(testbed, CLOSED, MODEL_SERVER)
    testbed.isolation.refresh()
    assert testbed.reached(CLOSED) == ALWAYS, "named, and not allowed"
    with testbed.database.transaction() as session:
        model_servers.allow(session, MODEL_SERVER)
    change_egress(testbed, OPEN, "none")
    change_egress(testbed, LISTED, "open")
    testbed.isolation.refresh()
    assert testbed.reached_by_each() == {OPEN: ALWAYS, CLOSED: ALWAYS | {"the model server"}, LISTED: ALWAYS | OF_OPEN}

    testbed.client.stop(f"aw-{testbed.sandboxes[CLOSED].id}", 0)
    with testbed.database.transaction() as session:
        model_servers.refuse(session, MODEL_SERVER)
    testbed.isolation.refresh()
    rules = testbed.isolation._context.firewall.read()
    assert rules is not None
    assert rules.sandboxes == {testbed.address(OPEN), testbed.address(LISTED)}
    assert (rules.models, rules.networks) == (frozenset(), frozenset())


def test_resolver_at_the_address_of_a_metadata_service_is_reached_at_its_port_only(testbed: NetworkTestbed) -> None:
    """As on Google Cloud."""
    control(testbed)
    IsolationFromOutside(replace(testbed.isolation._context, resolvers=METADATA)).refresh()
    reached = {spec: probe(testbed.inside(spec), OF_METADATA) for spec in SANDBOXES}
    assert reached == {OPEN: {"its resolver", "its resolver by TCP"}, CLOSED: set(), LISTED: set()}


def test_node_without_rules_is_closed_until_they_are_back(testbed: NetworkTestbed) -> None:
    testbed.isolation.refresh()
    assert testbed.isolation.check() is None
    testbed.node.run("nft", "flush", "ruleset")
    control(testbed)
    testbed.isolation.refresh()
    assert "missing or changed" in str(testbed.isolation.check())
    assert testbed.reached(CLOSED) == ALWAYS
    testbed.isolation.refresh()
    assert testbed.isolation.check() is None


def test_rules_exist_before_a_sandbox_is_used_and_are_removed_with_it(testbed: NetworkTestbed) -> None:
    testbed.isolation.refresh()
    observed, firewall = testbed.observe(OPEN), testbed.isolation._context.firewall
    address = frozenset({testbed.address(OPEN)})
    testbed.isolation.revoke(testbed.sandboxes[OPEN], observed)
    assert testbed.reached(OPEN) == set()
    testbed.isolation.admit(testbed.sandboxes[OPEN], observed)
    assert testbed.reached(OPEN) == ALWAYS | OF_OPEN
    testbed.isolation.revoke(testbed.sandboxes[OPEN], observed)
    rules = firewall.read()
    assert rules is not None
    assert rules.of(address) == Allowed()


def test_sandboxes_without_their_network_receive_no_packets(testbed: NetworkTestbed, tmp_path: Path) -> None:
    testbed.isolation.refresh()
    address, network = testbed.address(OPEN), testbed.isolation._context.network.name
    target = ("tcp", address, WEB)
    for sandbox in testbed.sandboxes.values():
        testbed.client.stop(container_name(sandbox.id), 0)
    testbed.engine.docker("network", "rm", network)
    with other_machine_at(address, testbed.lan, tmp_path / "lan.log"):
        assert testbed.node.probe([target]) == [False]
        assert testbed.lan.counted_packets() == 0
        testbed.node.run("nft", "flush", "ruleset")
        assert testbed.node.probe([target]) == [True]
        testbed.isolation.refresh()
        assert network in testbed.engine.docker("network", "ls", "--format", "{{.Name}}").split()
        assert testbed.node.probe([target]) == [False], "it is the address of a sandbox again, and none has it"
    eventually(lambda: is_removed(testbed, OPEN))
    start_sandbox(testbed.client, testbed.isolation, testbed.sandboxes[OPEN])
    eventually(lambda: testbed.node.probe([("tcp", testbed.address(OPEN), AGENT)]) == [True], deadline_seconds=30)


def is_removed(testbed: NetworkTestbed, name: str) -> bool:
    """Remove a sandbox's container. Like a worker, retry if the engine takes longer than a request may."""
    try:
        testbed.client.remove(container_name(testbed.sandboxes[name].id))
    except EngineUnavailable:
        return False
    return True


@contextmanager
def other_machine_at(address: str, lan: Namespace, log: Path) -> Iterator[None]:
    """Make the machine behind the default route listen at an address, for the length of the block."""
    lan.run("ip", "address", "add", f"{address}/32", "dev", "lo")
    lan.count_packets_to(NETWORK)
    try:
        with lan.listening(log, WEB, addresses=[address]):
            yield
    finally:
        lan.run("nft", "delete", "table", "ip", "counted")
        lan.run("ip", "address", "delete", f"{address}/32", "dev", "lo")


def control(testbed: NetworkTestbed) -> None:
    """Wait until probes succeed without rules: a server of the testbed may not listen yet."""
    neighbours = {f"its neighbour {other}" for other in SANDBOXES - {CLOSED}}
    eventually(lambda: testbed.reached(CLOSED) == set(TARGETS) | neighbours, deadline_seconds=60)
    eventually(lambda: testbed.reached_from(testbed.lan) == SANDBOXES | {"the service"}, deadline_seconds=60)


def change_egress(testbed: NetworkTestbed, spec: str, egress: str) -> None:
    with testbed.database.transaction() as session:
        specs.change(session, spec, {"egress": egress})
