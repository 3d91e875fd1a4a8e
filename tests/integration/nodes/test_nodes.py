"""Two nodes on real components: two engines with a worker each, one store and one broker."""

import pytest

from shared.nodes import placement
from shared.nodes import registry as node_registry
from shared.states import NodeStatus
from tests.integration.nodes.cluster import CAPACITY, A, B, Cluster, start_many, url_of
from tests.services import http
from tests.services.client import Client
from tests.waiting import eventually


def test_requests_reach_the_node_of_the_sandbox(cluster: Cluster, alice: Client) -> None:
    first, second = start_many(alice, 2)
    assert cluster.found() == {A: [first], B: [second]}
    for sandbox_id, name in ((first, A), (second, B)):
        found = alice.sandbox(sandbox_id)
        assert found
        assert cluster.door_of(sandbox_id) == cluster.address(name)
        key = {"X-Session-API-Key": found["session_api_key"]}
        assert http.get(f"{url_of(found)}/ready", headers=key, timeout=5).status_code == 200
        engine, container = cluster.engines[name], f"aw-{sandbox_id}"
        assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/pause").status_code == 200
        alice.await_sandbox(sandbox_id, "PAUSED")
        assert engine.docker("inspect", "--format", "{{.State.Status}}", container).strip() == "paused"
        assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 200
        alice.await_sandbox(sandbox_id, "RUNNING")
        assert engine.docker("inspect", "--format", "{{.State.Status}}", container).strip() == "running"
    assert alice.delete(f"/api/v1/sandboxes/{second}").status_code == 200
    eventually(lambda: cluster.engines[B].volumes() == [])
    assert cluster.found() == {A: [first], B: []}


@pytest.mark.nightly  # tests of the placement cover this for each change
def test_sandboxes_spread_by_free_slots_up_to_the_capacity(cluster: Cluster, alice: Client) -> None:
    ids = start_many(alice, 2 * CAPACITY)
    assert [cluster.node_of(sandbox_id) for sandbox_id in ids] == [A, B] * CAPACITY
    assert cluster.found() == {A: sorted(ids[::2]), B: sorted(ids[1::2])}
    one_more = alice.start_sandbox()
    assert cluster.node_of(one_more) is None
    assert alice.delete(f"/api/v1/sandboxes/{ids[1]}").status_code == 200
    alice.await_sandbox(one_more, "RUNNING")
    assert cluster.node_of(one_more) == B


def test_cordoned_node_gets_no_new_sandbox_and_keeps_its_own(cluster: Cluster, alice: Client) -> None:
    (kept,) = start_many(alice, 1)
    cluster.change(node_registry.cordon, A)
    new = start_many(alice, CAPACITY)
    assert cluster.found() == {A: [kept], B: sorted(new)}
    waiting = alice.start_sandbox()
    assert cluster.node_of(waiting) is None
    for verb, status in (("pause", "PAUSED"), ("resume", "RUNNING")):
        assert alice.post(f"/api/v1/sandboxes/{kept}/{verb}").status_code == 200
        alice.await_sandbox(kept, status)
    cluster.change(node_registry.uncordon, A)
    alice.await_sandbox(waiting, "RUNNING")
    assert cluster.found()[A] == sorted([kept, waiting])


@pytest.mark.nightly  # tests of the placement cover this for each change
def test_each_engine_has_one_node_and_each_node_one_engine(cluster: Cluster) -> None:
    service = cluster.service
    for name, engine in (("node-c", A), (A, B)):
        service.start_worker("misled", AW_NODE=name, AW_DOCKER_HOST=cluster.engines[engine].host)
        eventually(lambda: service.exit_code("misled") == 1)
        assert f"AW_NODE={engine}" in service.log()
    assert cluster.node("node-c") is None
    assert [cluster.await_node(name, NodeStatus.READY).id for name in (A, B)] == [A, B]


@pytest.mark.nightly  # tests of the placement cover this for each change
def test_node_with_a_full_disk_is_out_of_rotation_and_comes_back(cluster: Cluster, alice: Client) -> None:
    cluster.engines[A].fill_disk()
    ids = [start_many(alice, 1)[0] for _ in range(CAPACITY)]
    assert cluster.found() == {A: [], B: sorted(ids)}
    assert cluster.engines[A].volumes() == []
    (backoff,) = cluster.backoffs()
    assert (backoff.node_id, backoff.failures) == (A, placement.MAX_FAILURES)
    assert "no space left" in (backoff.detail or "")
    waiting = alice.start_sandbox()
    assert cluster.node_of(waiting) is None
    cluster.engines[A].free_disk()
    cluster.end_backoffs()
    alice.await_sandbox(waiting, "RUNNING")
    assert cluster.found()[A] == [waiting]
    assert cluster.backoffs() == []
    assert cluster.node_of(start_many(alice, 1)[0]) == A


def test_drained_node_keeps_only_files(cluster: Cluster, alice: Client) -> None:
    ids = start_many(alice, 2)
    cluster.change(node_registry.cordon, B)
    paused, *_ = start_many(alice, 1)
    assert alice.post(f"/api/v1/sandboxes/{paused}/pause").status_code == 200
    alice.await_sandbox(paused, "PAUSED")
    assert cluster.found() == {A: sorted([ids[0], paused]), B: [ids[1]]}
    cluster.command("nodes", "drain", A, "--yes")
    assert cluster.engines[A].docker("ps", "--quiet") == ""
    assert sorted(cluster.engines[A].volumes()) == sorted([f"aw-{ids[0]}", f"aw-{paused}"])
    assert (alice.sandbox(paused) or {})["pause_kind"] == "STOPPED"
    assert (alice.sandbox(ids[1]) or {})["status"] == "RUNNING"
    assert alice.post(f"/api/v1/sandboxes/{paused}/resume").status_code == 200
    alice.await_sandbox(paused, "RUNNING")  # on the node with its files
    assert cluster.node_of(paused) == A
    cluster.command("nodes", "drain", A, "--yes")
    assert cluster.engines[A].docker("ps", "--quiet") == ""
