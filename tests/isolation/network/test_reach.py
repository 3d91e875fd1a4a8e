"""Access from and to sandboxes. In the control without rules, everything is reached."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.nodes import model_servers
from shared.sandboxes import specs
from tests.isolation.network.scene import (
    AGENT,
    CLOSED,
    LAN,
    LISTED,
    MODEL,
    NETWORK,
    OPEN,
    TARGETS,
    WEB,
    Scene,
    name_model,
    start_sandbox,
)
from tests.services.namespaces import Namespace
from tests.waiting import eventually
from worker.engine.protocol import EngineUnavailable
from worker.network.rules import Allowed
from worker.sandboxes.container_spec import container_name

SANDBOXES = {OPEN, CLOSED, LISTED}
ALWAYS = {"the service"}
OF_OPEN = {"a public address", "a public resolver", "the resolver", "the resolver by TCP"}
OF_LISTED = {"another private network"}
MODEL_SERVER = f"{LAN}:{MODEL}"


def test_sandboxes_reach_the_egress_of_their_specs_and_owners(scene: Scene) -> None:
    control(scene)
    scene.isolation.refresh()
    assert scene.isolation.check() is None
    assert scene.reached_by_each() == {OPEN: ALWAYS | OF_OPEN, CLOSED: ALWAYS, LISTED: ALWAYS | OF_LISTED}
    assert scene.reached_from(scene.node) == SANDBOXES | {"the service"}
    assert scene.reached_from(scene.lan) == set()

    name_model(scene, CLOSED, MODEL_SERVER)
    scene.isolation.refresh()
    assert scene.reached(CLOSED) == ALWAYS, "named, and not allowed"
    with scene.database.transaction() as session:
        model_servers.allow(session, MODEL_SERVER)
    change_egress(scene, OPEN, "none")
    change_egress(scene, LISTED, "open")
    scene.isolation.refresh()
    assert scene.reached_by_each() == {OPEN: ALWAYS, CLOSED: ALWAYS | {"the model server"}, LISTED: ALWAYS | OF_OPEN}

    scene.client.stop(f"aw-{scene.sandboxes[CLOSED].id}", 0)
    with scene.database.transaction() as session:
        model_servers.refuse(session, MODEL_SERVER)
    scene.isolation.refresh()
    rules = scene.isolation._context.firewall.read()
    assert rules is not None
    assert rules.sandboxes == {scene.address(OPEN), scene.address(LISTED)}
    assert (rules.models, rules.networks) == (frozenset(), frozenset())


def test_node_without_rules_is_closed_until_they_are_back(scene: Scene) -> None:
    scene.isolation.refresh()
    assert scene.isolation.check() is None
    scene.node.run("nft", "flush", "ruleset")
    control(scene)
    scene.isolation.refresh()
    assert "missing or changed" in str(scene.isolation.check())
    assert scene.reached(CLOSED) == ALWAYS
    scene.isolation.refresh()
    assert scene.isolation.check() is None


def test_rules_exist_before_a_sandbox_is_used_and_are_removed_with_it(scene: Scene) -> None:
    scene.isolation.refresh()
    observed, firewall = scene.observe(OPEN), scene.isolation._context.firewall
    address = frozenset({scene.address(OPEN)})
    scene.isolation.revoke(scene.sandboxes[OPEN], observed)
    assert scene.reached(OPEN) == set()
    scene.isolation.admit(scene.sandboxes[OPEN], observed)
    assert scene.reached(OPEN) == ALWAYS | OF_OPEN
    scene.isolation.revoke(scene.sandboxes[OPEN], observed)
    rules = firewall.read()
    assert rules is not None
    assert rules.of(address) == Allowed()


def test_sandboxes_without_their_network_receive_no_packets(scene: Scene, tmp_path: Path) -> None:
    scene.isolation.refresh()
    address, network = scene.address(OPEN), scene.isolation._context.network.name
    target = ("tcp", address, WEB)
    for sandbox in scene.sandboxes.values():
        scene.client.stop(container_name(sandbox.id), 0)
    scene.engine.docker("network", "rm", network)
    with other_machine_at(address, scene.lan, tmp_path / "lan.log"):
        assert scene.node.probe([target]) == [False]
        assert scene.lan.counted_packets() == 0
        scene.node.run("nft", "flush", "ruleset")
        assert scene.node.probe([target]) == [True]
        scene.isolation.refresh()
        assert network in scene.engine.docker("network", "ls", "--format", "{{.Name}}").split()
        assert scene.node.probe([target]) == [False], "it is the address of a sandbox again, and none has it"
    eventually(lambda: is_removed(scene, OPEN))
    start_sandbox(scene.client, scene.isolation, scene.sandboxes[OPEN])
    eventually(lambda: scene.node.probe([("tcp", scene.address(OPEN), AGENT)]) == [True], deadline_seconds=30)


def is_removed(scene: Scene, name: str) -> bool:
    """Remove a sandbox's container. Like a worker, retry if the engine takes longer than a request may."""
    try:
        scene.client.remove(container_name(scene.sandboxes[name].id))
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


def control(scene: Scene) -> None:
    """Wait until probes succeed without rules: a server of the scene may not listen yet."""
    neighbours = {f"its neighbour {other}" for other in SANDBOXES - {CLOSED}}
    eventually(lambda: scene.reached(CLOSED) == set(TARGETS) | neighbours, deadline_seconds=60)
    eventually(lambda: scene.reached_from(scene.lan) == SANDBOXES | {"the service"}, deadline_seconds=60)


def change_egress(scene: Scene, spec: str, egress: str) -> None:
    with scene.database.transaction() as session:
        specs.change(session, spec, {"egress": egress})
