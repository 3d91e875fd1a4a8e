"""The rules follow the database and the engine. Without rules, the node is closed and starts no container."""

from dataclasses import replace

import pytest

from shared.models import Node, Sandbox, SandboxSpec, StartTask
from shared.nodes import model_servers
from shared.sandboxes import specs
from shared.states import Desired, Reason, Stage, Status
from tests.doubles import PromptExecutor
from tests.factories import NODE_ID, ApiUser
from tests.fakes.engine import IMAGE
from tests.worker.network.scene import Scene
from tests.worker.scenarios import (
    configure,
    deliver,
    request_start,
    row,
    running,
    set_desired,
    start,
    store_settings,
    warm,
)
from worker.conversations.start import start_conversation
from worker.engine.protocol import ContainerState
from worker.loops.health_monitor import SHARDS, LivenessMonitor
from worker.loops.heartbeat import send_heartbeat
from worker.loops.recheck import recheck
from worker.network import isolation as module
from worker.network.rules import Allowed
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

SERVER = "192.168.1.20:8000"
MODELS = {"llm_base_url": f"http://{SERVER}/v1"}


@pytest.fixture
def sandbox_id(scene: Scene, user: ApiUser) -> str:
    """A running sandbox with firewall rules."""
    scene.isolation.refresh()
    return running(scene.context, user)


def set_egress(scene: Scene, egress: str) -> None:
    with scene.context.database.transaction() as session:
        specs.change(session, IMAGE, {"egress": egress})


def test_first_refresh_creates_network_and_rules(scene: Scene) -> None:
    assert scene.isolation.check() is not None
    scene.isolation.refresh()
    assert scene.isolation.check() is None
    [network] = scene.engine.networks.values()
    assert (network.bridge, network.subnet, network.gateway) == (
        scene.isolation._context.bridge.name,
        "10.213.0.0/20",
        "10.213.0.1",
    )
    assert scene.rules == Allowed(services=frozenset({"10.213.0.1 . 3001"}), resolvers=frozenset({"9.9.9.9"}))


def test_sandbox_is_admitted_before_it_is_running_and_revoked_at_its_end(scene: Scene, sandbox_id: str) -> None:
    address = scene.address(sandbox_id)
    assert scene.rules.of(frozenset({address})) == Allowed(sandboxes=frozenset({address}), open=frozenset({address}))
    place = scene.engine.containers[container_name(sandbox_id)].request.network
    assert place is not None
    assert (place.host_address, place.resolvers) == ("10.213.0.1", ("9.9.9.9",))
    scene.isolation.refresh()
    assert (scene.firewall.writes, scene.firewall.changes) == (1, 1), "the refresh found nothing to correct"
    set_desired(scene.context, sandbox_id, Desired.DELETED)
    reconcile(scene.context, sandbox_id)
    assert row(scene.context, Sandbox, sandbox_id).status == Status.DELETED
    assert scene.rules.of(frozenset({address})) == Allowed()


def test_sandbox_is_deleted_once_its_rules_are_removed(scene: Scene, sandbox_id: str) -> None:
    address = frozenset({scene.address(sandbox_id)})
    scene.firewall.fails_to_change = True
    set_desired(scene.context, sandbox_id, Desired.DELETED)
    for _ in range(2):  # the second attempt finds no container any more
        reconcile(scene.context, sandbox_id)
    assert not scene.engine.containers
    assert row(scene.context, Sandbox, sandbox_id).status == Status.DELETING
    assert scene.rules.of(address)
    scene.firewall.fails_to_change = False
    reconcile(scene.context, sandbox_id)
    assert row(scene.context, Sandbox, sandbox_id).status == Status.DELETED
    assert not scene.rules.of(address)


def test_stop_withdraws_and_resume_admits_the_new_address(scene: Scene, sandbox_id: str) -> None:
    before = scene.address(sandbox_id)
    set_desired(scene.context, sandbox_id, Desired.STOPPED)
    reconcile(scene.context, sandbox_id)
    assert scene.rules.sandboxes == frozenset()
    set_desired(scene.context, sandbox_id, Desired.RUNNING)
    reconcile(scene.context, sandbox_id)
    assert scene.rules.sandboxes == {scene.address(sandbox_id)} != {before}


@pytest.mark.parametrize(
    ("egress", "is_open", "networks"),
    [("none", False, set()), ("10.1.0.0/16,8.8.8.8/32", False, {"10.1.0.0/16", "8.8.8.8"}), ("open", True, set())],
)
def test_egress_follows_the_spec_while_running(
    scene: Scene, sandbox_id: str, egress: str, is_open: bool, networks: set[str]
) -> None:
    set_egress(scene, egress)
    scene.isolation.refresh()
    address = scene.address(sandbox_id)
    assert scene.rules.open == ({address} if is_open else set())
    assert scene.rules.networks == {f"{address} . {network}" for network in networks}
    assert scene.firewall.writes == 1
    with scene.context.database.reading() as session:
        assert session.get_one(SandboxSpec, IMAGE).revision == 1, "warm sandboxes stay usable"


def test_model_server_is_reached_if_it_is_allowed_and_named(scene: Scene, sandbox_id: str, user: ApiUser) -> None:
    address = scene.address(sandbox_id)
    store_settings(scene.context, user, **MODELS)
    scene.isolation.refresh()
    assert scene.rules.models == frozenset()
    with scene.context.database.transaction() as session:
        model_servers.allow(session, SERVER)
    scene.isolation.refresh()
    assert scene.rules.models == {f"{address} . 192.168.1.20 . 8000"}
    store_settings(scene.context, user, llm_base_url="http://192.168.1.21:8000")
    scene.isolation.refresh()
    assert scene.rules.models == frozenset()


def test_model_server_of_a_new_sandbox_is_reached_at_once(scene: Scene, user: ApiUser) -> None:
    scene.isolation.refresh()
    store_settings(scene.context, user, **MODELS)
    with scene.context.database.transaction() as session:
        model_servers.allow(session, SERVER)
    sandbox_id = running(scene.context, user)
    assert scene.rules.models == {f"{scene.address(sandbox_id)} . 192.168.1.20 . 8000"}


def test_model_server_of_a_new_conversation_is_reached_at_once(scene: Scene, sandbox_id: str, user: ApiUser) -> None:
    with scene.context.database.transaction() as session:
        model_servers.allow(session, SERVER)
    configure(scene.context, user)
    store_settings(scene.context, user, **MODELS)
    assert scene.rules.models == frozenset()
    task_id = request_start(scene.context, user, sandbox_id)
    start_conversation(scene.context, task_id)
    assert row(scene.context, StartTask, task_id).stage == Stage.READY
    assert scene.rules.models == {f"{scene.address(sandbox_id)} . 192.168.1.20 . 8000"}


@pytest.mark.usefixtures("sandbox_id")
def test_flushed_rules_close_the_node_until_they_are_read_back(scene: Scene) -> None:
    before = scene.rules
    scene.firewall.remove()
    assert scene.isolation.refresh(), "the next heartbeat is immediate"
    assert scene.rules == before, "they are written again at once"
    assert not scene.isolation.refresh()
    assert "missing or changed" in str(closed_reason(scene)), "the next heartbeat reports it, however late"
    assert scene.isolation.refresh()
    assert closed_reason(scene) is None


def test_node_without_rights_is_closed_and_starts_nothing(scene: Scene, user: ApiUser) -> None:
    scene.firewall.problem = "nft is missing: install the package nftables"
    scene.isolation.refresh()
    assert closed_reason(scene) == scene.firewall.problem
    sandbox_id = start(scene.context, user)
    reconcile(scene.context, sandbox_id)
    assert scene.engine.observe(container_name(sandbox_id)).state in (ContainerState.CREATED, ContainerState.ABSENT)
    assert "start" not in scene.engine.verbs()
    scene.firewall.problem = None
    scene.isolation.refresh()
    assert closed_reason(scene) is None


def test_foreign_network_closes_the_node(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_conflict", lambda _: "10.0.0.0/8 by eth1")
    scene.isolation.refresh()
    assert "AW_SANDBOX_ADDRESSES is 10.213.0.0/20" in str(scene.isolation.check())
    monkeypatch.setattr(module, "find_conflict", lambda _: None)
    request = scene.isolation._context.network
    scene.engine.networks[request.name] = replace(request, subnet="10.1.0.0/24")
    scene.isolation.refresh()
    assert "other addresses" in str(scene.isolation.check())


class TestBridgeDown:
    """Another program of the machine sets the sandboxes' bridge down, or removes its address or its route.

    Another machine may respond at the sandboxes' addresses instead, for example a transparent proxy.
    """

    WORDS = "this machine does not reach the sandboxes' addresses"

    @pytest.fixture(autouse=True, params=["nothing responds", "another server responds"])
    def _down(
        self, scene: Scene, sandbox_id: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
    ) -> None:
        name = container_name(sandbox_id)
        if request.param == "nothing responds":
            scene.engine.silent = {name}
        else:
            scene.engine.impostors[name], scene.engine.impostor_status = 10_000, 404
        monkeypatch.setattr(module, "find_route_problem", lambda _: self.WORDS)

    def test_running_sandboxes_keep_running_while_the_bridge_is_down(self, scene: Scene, sandbox_id: str) -> None:
        settings = scene.context.settings.model_copy(update={"health_probe_seconds": 30.0, "health_timeout": 60.0})
        context = replace(scene.context, settings=settings)
        monitor = LivenessMonitor(context, probes=PromptExecutor(), checks=PromptExecutor())
        for _ in range(4 * len(SHARDS)):
            monitor.probe_next_shard()
            deliver(context)
        assert row(context, Sandbox, sandbox_id).status == Status.RUNNING
        assert scene.engine.containers[container_name(sandbox_id)].state == ContainerState.RUNNING

    def test_resume_waits_for_the_bridge_and_shows_the_reason(
        self, scene: Scene, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for desired in (Desired.PAUSED, Desired.RUNNING):
            set_desired(scene.context, sandbox_id, desired)
            for _ in range(8):
                reconcile(scene.context, sandbox_id)
        found = row(scene.context, Sandbox, sandbox_id)
        assert (found.status, found.reason) == (Status.PAUSED, Reason.ENGINE_ERROR)
        assert self.WORDS in str(found.detail)
        scene.engine.silent.clear()
        scene.engine.impostors.clear()
        monkeypatch.setattr(module, "find_route_problem", lambda _: None)
        reconcile(scene.context, sandbox_id)
        assert row(scene.context, Sandbox, sandbox_id).status == Status.RUNNING

    def test_warm_sandbox_stays_in_the_pool_while_the_bridge_is_down(
        self, scene: Scene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        warm_id = warm(scene.context)
        monkeypatch.setattr(module, "find_route_problem", lambda _: None)
        reconcile(scene.context, warm_id)
        monkeypatch.setattr(module, "find_route_problem", lambda _: self.WORDS)
        scene.engine.impostors[container_name(warm_id)] = 10_000
        recheck(scene.context, warm_id)
        deliver(scene.context)
        assert row(scene.context, Sandbox, warm_id).status == Status.RUNNING

    def test_node_takes_no_new_sandboxes_while_the_bridge_is_down(self, scene: Scene) -> None:
        scene.isolation.refresh()
        assert self.WORDS in str(closed_reason(scene))


@pytest.mark.usefixtures("sandbox_id")
def test_change_that_fails_is_replaced_by_whole_rules(scene: Scene) -> None:
    scene.firewall.fails_to_change = True
    set_egress(scene, "none")
    scene.isolation.refresh()
    assert (scene.firewall.writes, scene.rules.open) == (2, frozenset())


@pytest.mark.usefixtures("sandbox_id")
def test_unavailable_engine_leaves_the_rules_unchanged(scene: Scene) -> None:
    before, scene.engine.down = scene.rules, True
    scene.isolation.refresh()
    assert (scene.rules, scene.isolation.check()) == (before, None)


def test_sandbox_of_an_earlier_version_joins_the_network_at_its_restart(scene: Scene, user: ApiUser) -> None:
    sandbox_id = running(scene.bare, user)  # on the engine's own bridge
    scene.isolation.refresh()
    assert scene.rules.sandboxes == frozenset()
    name = container_name(sandbox_id)
    scene.engine.servers[name].files["/workspace/kept"] = b"kept"
    for desired in (Desired.STOPPED, Desired.RUNNING):
        set_desired(scene.context, sandbox_id, desired)
        reconcile(scene.context, sandbox_id)
    assert row(scene.context, Sandbox, sandbox_id).status == Status.RUNNING
    assert scene.engine.containers[name].request.network is not None
    assert scene.engine.servers[name].files["/workspace/kept"] == b"kept"
    assert scene.rules.sandboxes == {scene.address(sandbox_id)}


def closed_reason(scene: Scene) -> str | None:
    send_heartbeat(scene.context)
    with scene.context.database.reading() as session:
        return session.get_one(Node, NODE_ID).closed_reason
