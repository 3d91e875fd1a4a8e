"""The rules follow the database and the engine. Without rules, the node is closed and starts no container."""

from dataclasses import replace

import pytest

from shared.models import Node, Sandbox, SandboxSpec, StartTask
from shared.nodes import model_servers
from shared.sandboxes import specs
from shared.states import Desired, Reason, Stage, Status
from tests.doubles import ImmediateExecutor
from tests.factories import NODE_ID, ApiUser
from tests.fakes.engine import IMAGE
from tests.worker.network.testbed import NetworkTestbed
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
def sandbox_id(testbed: NetworkTestbed, user: ApiUser) -> str:
    """A running sandbox with firewall rules."""
    testbed.isolation.refresh()
    return running(testbed.context, user)


def set_egress(testbed: NetworkTestbed, egress: str) -> None:
    with testbed.context.database.transaction() as session:
        specs.change(session, IMAGE, {"egress": egress})


def test_first_refresh_creates_network_and_rules(testbed: NetworkTestbed) -> None:
    assert testbed.isolation.check() is not None
    testbed.isolation.refresh()
    assert testbed.isolation.check() is None
    [network] = testbed.engine.networks.values()
    assert (network.bridge, network.subnet, network.gateway) == (
        testbed.isolation._context.bridge.name,
        "10.213.0.0/20",
        "10.213.0.1",
    )
    assert testbed.rules == Allowed(services=frozenset({"10.213.0.1 . 3001"}), resolvers=frozenset({"9.9.9.9"}))


def test_sandbox_is_admitted_before_it_is_running_and_revoked_at_its_end(
    testbed: NetworkTestbed, sandbox_id: str
) -> None:
    address = testbed.address(sandbox_id)
    assert testbed.rules.of(frozenset({address})) == Allowed(sandboxes=frozenset({address}), open=frozenset({address}))
    place = testbed.engine.containers[container_name(sandbox_id)].request.network
    assert place is not None
    assert (place.host_address, place.resolvers) == ("10.213.0.1", ("9.9.9.9",))
    testbed.isolation.refresh()
    assert (testbed.firewall.writes, testbed.firewall.changes) == (1, 1), "the refresh found nothing to correct"
    set_desired(testbed.context, sandbox_id, Desired.DELETED)
    reconcile(testbed.context, sandbox_id)
    assert row(testbed.context, Sandbox, sandbox_id).status == Status.DELETED
    assert testbed.rules.of(frozenset({address})) == Allowed()


def test_sandbox_is_deleted_once_its_rules_are_removed(testbed: NetworkTestbed, sandbox_id: str) -> None:
    address = frozenset({testbed.address(sandbox_id)})
    testbed.firewall.fails_to_change = True
    set_desired(testbed.context, sandbox_id, Desired.DELETED)
    for _ in range(2):  # the second attempt finds no container any more
        reconcile(testbed.context, sandbox_id)
    assert not testbed.engine.containers
    assert row(testbed.context, Sandbox, sandbox_id).status == Status.DELETING
    assert testbed.rules.of(address)
    testbed.firewall.fails_to_change = False
    reconcile(testbed.context, sandbox_id)
    assert row(testbed.context, Sandbox, sandbox_id).status == Status.DELETED
    assert not testbed.rules.of(address)


def test_stop_withdraws_and_resume_admits_the_new_address(testbed: NetworkTestbed, sandbox_id: str) -> None:
    before = testbed.address(sandbox_id)
    set_desired(testbed.context, sandbox_id, Desired.STOPPED)
    reconcile(testbed.context, sandbox_id)
    assert testbed.rules.sandboxes == frozenset()
    set_desired(testbed.context, sandbox_id, Desired.RUNNING)
    reconcile(testbed.context, sandbox_id)
    assert testbed.rules.sandboxes == {testbed.address(sandbox_id)} != {before}


@pytest.mark.parametrize(
    ("egress", "is_open", "networks"),
    [("none", False, set()), ("10.1.0.0/16,8.8.8.8/32", False, {"10.1.0.0/16", "8.8.8.8"}), ("open", True, set())],
)
def test_egress_follows_the_spec_while_running(
    testbed: NetworkTestbed, sandbox_id: str, egress: str, is_open: bool, networks: set[str]
) -> None:
    set_egress(testbed, egress)
    testbed.isolation.refresh()
    address = testbed.address(sandbox_id)
    assert testbed.rules.open == ({address} if is_open else set())
    assert testbed.rules.networks == {f"{address} . {network}" for network in networks}
    assert testbed.firewall.writes == 1
    with testbed.context.database.reading() as session:
        assert session.get_one(SandboxSpec, IMAGE).revision == 1, "warm sandboxes stay usable"


def test_model_server_is_reached_if_it_is_allowed_and_named(
    testbed: NetworkTestbed, sandbox_id: str, user: ApiUser
) -> None:
    address = testbed.address(sandbox_id)
    store_settings(testbed.context, user, **MODELS)
    testbed.isolation.refresh()
    assert testbed.rules.models == frozenset()
    with testbed.context.database.transaction() as session:
        model_servers.allow(session, SERVER)
    testbed.isolation.refresh()
    assert testbed.rules.models == {f"{address} . 192.168.1.20 . 8000"}
    store_settings(testbed.context, user, llm_base_url="http://192.168.1.21:8000")
    testbed.isolation.refresh()
    assert testbed.rules.models == frozenset()


def test_model_server_of_a_new_sandbox_is_reached_at_once(testbed: NetworkTestbed, user: ApiUser) -> None:
    testbed.isolation.refresh()
    store_settings(testbed.context, user, **MODELS)
    with testbed.context.database.transaction() as session:
        model_servers.allow(session, SERVER)
    sandbox_id = running(testbed.context, user)
    assert testbed.rules.models == {f"{testbed.address(sandbox_id)} . 192.168.1.20 . 8000"}


def test_model_server_of_a_new_conversation_is_reached_at_once(
    testbed: NetworkTestbed, sandbox_id: str, user: ApiUser
) -> None:
    with testbed.context.database.transaction() as session:
        model_servers.allow(session, SERVER)
    configure(testbed.context, user)
    store_settings(testbed.context, user, **MODELS)
    assert testbed.rules.models == frozenset()
    task_id = request_start(testbed.context, user, sandbox_id)
    start_conversation(testbed.context, task_id)
    assert row(testbed.context, StartTask, task_id).stage == Stage.READY
    assert testbed.rules.models == {f"{testbed.address(sandbox_id)} . 192.168.1.20 . 8000"}


@pytest.mark.usefixtures("sandbox_id")
def test_flushed_rules_close_the_node_until_they_are_read_back(testbed: NetworkTestbed) -> None:
    before = testbed.rules
    testbed.firewall.remove()
    assert testbed.isolation.refresh(), "the next heartbeat is immediate"
    assert testbed.rules == before, "they are written again at once"
    assert not testbed.isolation.refresh()
    assert "missing or changed" in str(closed_reason(testbed)), "the next heartbeat reports it, however late"
    assert testbed.isolation.refresh()
    assert closed_reason(testbed) is None


def test_node_without_rights_is_closed_and_starts_nothing(testbed: NetworkTestbed, user: ApiUser) -> None:
    testbed.firewall.problem = "nft is missing: install the package nftables"
    testbed.isolation.refresh()
    assert closed_reason(testbed) == testbed.firewall.problem
    sandbox_id = start(testbed.context, user)
    reconcile(testbed.context, sandbox_id)
    assert testbed.engine.observe(container_name(sandbox_id)).state in (ContainerState.CREATED, ContainerState.ABSENT)
    assert "start" not in testbed.engine.verbs()
    testbed.firewall.problem = None
    testbed.isolation.refresh()
    assert closed_reason(testbed) is None


def test_foreign_network_closes_the_node(testbed: NetworkTestbed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_conflict", lambda _: "10.0.0.0/8 by eth1")
    testbed.isolation.refresh()
    assert "AW_SANDBOX_ADDRESSES is 10.213.0.0/20" in str(testbed.isolation.check())
    monkeypatch.setattr(module, "find_conflict", lambda _: None)
    request = testbed.isolation._context.network
    testbed.engine.networks[request.name] = replace(request, subnet="10.1.0.0/24")
    testbed.isolation.refresh()
    assert "other addresses" in str(testbed.isolation.check())


class TestBridgeDown:
    """Another program of the machine sets the sandboxes' bridge down, or removes its address or its route.

    Another machine may respond at the sandboxes' addresses instead, for example a transparent proxy.
    """

    WORDS = "this machine does not reach the sandboxes' addresses"

    @pytest.fixture(autouse=True, params=["nothing responds", "another server responds"])
    def _down(
        self, testbed: NetworkTestbed, sandbox_id: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
    ) -> None:
        name = container_name(sandbox_id)
        if request.param == "nothing responds":
            testbed.engine.silent = {name}
        else:
            testbed.engine.impostors[name], testbed.engine.impostor_status = 10_000, 404
        monkeypatch.setattr(module, "find_route_problem", lambda _: self.WORDS)

    def test_running_sandboxes_keep_running_while_the_bridge_is_down(
        self, testbed: NetworkTestbed, sandbox_id: str
    ) -> None:
        settings = testbed.context.settings.model_copy(update={"health_probe_seconds": 30.0, "health_timeout": 60.0})
        context = replace(testbed.context, settings=settings)
        monitor = LivenessMonitor(context, probes=ImmediateExecutor(), checks=ImmediateExecutor())
        for _ in range(4 * len(SHARDS)):
            monitor.probe_next_shard()
            deliver(context)
        assert row(context, Sandbox, sandbox_id).status == Status.RUNNING
        assert testbed.engine.containers[container_name(sandbox_id)].state == ContainerState.RUNNING

    def test_resume_waits_for_the_bridge_and_shows_the_reason(
        self, testbed: NetworkTestbed, sandbox_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for desired in (Desired.PAUSED, Desired.RUNNING):
            set_desired(testbed.context, sandbox_id, desired)
            for _ in range(8):
                reconcile(testbed.context, sandbox_id)
        found = row(testbed.context, Sandbox, sandbox_id)
        assert (found.status, found.reason) == (Status.PAUSED, Reason.ENGINE_ERROR)
        assert self.WORDS in str(found.detail)
        testbed.engine.silent.clear()
        testbed.engine.impostors.clear()
        monkeypatch.setattr(module, "find_route_problem", lambda _: None)
        reconcile(testbed.context, sandbox_id)
        assert row(testbed.context, Sandbox, sandbox_id).status == Status.RUNNING

    def test_warm_sandbox_stays_in_the_pool_while_the_bridge_is_down(
        self, testbed: NetworkTestbed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        warm_id = warm(testbed.context)
        monkeypatch.setattr(module, "find_route_problem", lambda _: None)
        reconcile(testbed.context, warm_id)
        monkeypatch.setattr(module, "find_route_problem", lambda _: self.WORDS)
        testbed.engine.impostors[container_name(warm_id)] = 10_000
        recheck(testbed.context, warm_id)
        deliver(testbed.context)
        assert row(testbed.context, Sandbox, warm_id).status == Status.RUNNING

    def test_node_takes_no_new_sandboxes_while_the_bridge_is_down(self, testbed: NetworkTestbed) -> None:
        testbed.isolation.refresh()
        assert self.WORDS in str(closed_reason(testbed))


@pytest.mark.usefixtures("sandbox_id")
def test_change_that_fails_is_replaced_by_whole_rules(testbed: NetworkTestbed) -> None:
    testbed.firewall.fails_to_change = True
    set_egress(testbed, "none")
    testbed.isolation.refresh()
    assert (testbed.firewall.writes, testbed.rules.open) == (2, frozenset())


@pytest.mark.usefixtures("sandbox_id")
def test_unavailable_engine_leaves_the_rules_unchanged(testbed: NetworkTestbed) -> None:
    before, testbed.engine.down = testbed.rules, True
    testbed.isolation.refresh()
    assert (testbed.rules, testbed.isolation.check()) == (before, None)


def test_sandbox_of_an_earlier_version_joins_the_network_at_its_restart(testbed: NetworkTestbed, user: ApiUser) -> None:
    sandbox_id = running(testbed.bare, user)  # on the engine's own bridge
    testbed.isolation.refresh()
    assert testbed.rules.sandboxes == frozenset()
    name = container_name(sandbox_id)
    testbed.engine.servers[name].files["/workspace/kept"] = b"kept"
    for desired in (Desired.STOPPED, Desired.RUNNING):
        set_desired(testbed.context, sandbox_id, desired)
        reconcile(testbed.context, sandbox_id)
    assert row(testbed.context, Sandbox, sandbox_id).status == Status.RUNNING
    assert testbed.engine.containers[name].request.network is not None
    assert testbed.engine.servers[name].files["/workspace/kept"] == b"kept"
    assert testbed.rules.sandboxes == {testbed.address(sandbox_id)}


def closed_reason(testbed: NetworkTestbed) -> str | None:
    send_heartbeat(testbed.context)
    with testbed.context.database.reading() as session:
        return session.get_one(Node, NODE_ID).closed_reason
