"""A node is lost with a running sandbox: its worker is killed or suspended, or its engine is down."""

import pytest

from shared.nodes import registry as node_registry
from shared.states import NodeStatus
from tests.integration.nodes.cluster import A, B, Cluster, start_many
from tests.services.client import Client
from tests.services.deployment_settings import LOST_SOON
from tests.waiting import eventually


@pytest.fixture
def node_settings() -> dict[str, str]:
    return LOST_SOON


@pytest.fixture
def sandbox_id(cluster: Cluster, alice: Client) -> str:
    (sandbox_id,) = start_many(alice, 1)
    assert cluster.found() == {A: [sandbox_id], B: []}
    return sandbox_id


@pytest.mark.parametrize("killed", [True, False])
def test_sandbox_fails_over_and_never_runs_twice(
    cluster: Cluster, alice: Client, sandbox_id: str, killed: bool
) -> None:
    cluster.service.kill(A) if killed else cluster.service.freeze_between_writes(A)
    await_lost(cluster, alice, sandbox_id, "last heard of")
    new = start_many(alice, 1)
    assert cluster.found() == {A: [sandbox_id], B: new}
    resume_on_b(cluster, alice, sandbox_id)
    cluster.service.start_worker(A, A) if killed else cluster.service.wake(A)
    cluster.await_node(A, NodeStatus.READY)
    assert (cluster.found()[A], cluster.engines[A].volumes()) == ([], [])
    assert cluster.found()[B] == sorted([sandbox_id, *new])
    assert_usable(cluster, alice, sandbox_id)


@pytest.mark.nightly  # tests of the fail-over cover this for each change, with engines in memory
def test_sandbox_fails_over_from_an_engine_that_is_down(cluster: Cluster, alice: Client, sandbox_id: str) -> None:
    cluster.engines[A].stop()
    try:
        found = cluster.await_node(A, NodeStatus.LOST)
        assert "the engine does not respond" in (found.detail or "")
        # The engine may or may not have reported the end of the container: the next resume reports `node_lost` then.
        eventually(lambda: is_moved(cluster, alice, sandbox_id), deadline_seconds=180, interval_seconds=0.5)
    finally:
        cluster.engines[A].start()
    cluster.await_node(A, NodeStatus.READY)
    assert (cluster.found(), cluster.engines[A].volumes()) == ({A: [], B: [sandbox_id]}, [])
    assert_usable(cluster, alice, sandbox_id)


@pytest.mark.nightly  # tests of the fail-over cover this for each change, with engines in memory
def test_returning_node_keeps_a_sandbox_without_a_resume(cluster: Cluster, alice: Client, sandbox_id: str) -> None:
    cluster.service.freeze_between_writes(A)
    await_lost(cluster, alice, sandbox_id, "last heard of")
    cluster.service.wake(A)
    eventually(lambda: (alice.sandbox(sandbox_id) or {})["status"] == "RUNNING")
    assert cluster.found() == {A: [sandbox_id], B: []}
    assert [move["to_status"] for move in alice.read(f"/api/v1/sandboxes/{sandbox_id}/transitions")] == [
        "STARTING",
        "RUNNING",
        "ERROR",
        "RUNNING",
    ]


@pytest.mark.nightly  # tests of the fail-over cover this for each change, with engines in memory
def test_sandbox_deleted_during_the_outage_is_removed_when_the_node_is_back(
    cluster: Cluster, alice: Client, sandbox_id: str
) -> None:
    cluster.service.kill(A)
    await_lost(cluster, alice, sandbox_id, "last heard of")
    assert alice.delete(f"/api/v1/sandboxes/{sandbox_id}").status_code == 200
    assert alice.sandbox(sandbox_id) is None
    cluster.service.start_worker(A, A)
    eventually(lambda: cluster.engines[A].volumes() == cluster.found()[A] == [])


def test_deleted_node_that_returns_keeps_only_its_own_sandboxes(
    cluster: Cluster, alice: Client, sandbox_id: str
) -> None:
    cluster.change(node_registry.cordon, B)
    left, deleted, resumed = sandbox_id, *start_many(alice, 2)
    cluster.change(node_registry.uncordon, B)
    cluster.service.freeze_between_writes(A)
    for each in (left, deleted, resumed):
        await_lost(cluster, alice, each, "last heard of")
    assert alice.delete(f"/api/v1/sandboxes/{deleted}").status_code == 200
    cluster.delete_node(A)
    eventually(lambda: cluster.status_of(deleted) == "DELETED")
    resume_on_b(cluster, alice, resumed)
    assert cluster.found()[A] == sorted([left, deleted, resumed])
    cluster.service.wake(A)
    cluster.await_node(A, NodeStatus.READY)
    assert cluster.found() == {A: [left], B: [resumed]}
    assert cluster.engines[A].volumes() == [f"aw-{left}"]
    eventually(lambda: (alice.sandbox(left) or {})["status"] == "RUNNING")


def await_lost(cluster: Cluster, alice: Client, sandbox_id: str, words: str) -> None:
    assert words in (cluster.await_node(A, NodeStatus.LOST).detail or "")
    eventually(lambda: (alice.sandbox(sandbox_id) or {})["status"] == "ERROR")
    found = alice.sandbox(sandbox_id)
    assert found
    assert found["reason"] == "node_lost"
    assert A in found["detail"]
    assert "files" in found["detail"]


def resume_on_b(cluster: Cluster, alice: Client, sandbox_id: str) -> None:
    assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 200
    eventually(lambda: (alice.sandbox(sandbox_id) or {})["status"] == "RUNNING")
    assert cluster.node_of(sandbox_id) == B
    assert cluster.door_of(sandbox_id) == cluster.address(B)
    assert sandbox_id in cluster.found()[B]


def is_moved(cluster: Cluster, alice: Client, sandbox_id: str) -> bool:
    found = alice.sandbox(sandbox_id) or {}
    if found["status"] == "ERROR":
        assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 200
    return found["status"] == "RUNNING" and cluster.node_of(sandbox_id) == B


def assert_usable(cluster: Cluster, alice: Client, sandbox_id: str) -> None:
    for verb, status in (("pause", "PAUSED"), ("resume", "RUNNING")):
        assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/{verb}").status_code == 200
        alice.await_sandbox(sandbox_id, status)
    assert sandbox_id not in cluster.found()[A]
    assert alice.delete(f"/api/v1/sandboxes/{sandbox_id}").status_code == 200
    eventually(lambda: sandbox_id not in cluster.found()[B])
