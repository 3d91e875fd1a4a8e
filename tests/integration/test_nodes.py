"""Several nodes on real parts: two engines, a worker beside each, one store and one broker."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from shared.models import Node, Sandbox
from shared.states import NodeStatus
from shared.store import nodes
from tests.services.directories import short_directory
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine, running_private_engine
from tests.services.service import Client, Service
from tests.services.valkey import Valkey
from tests.waiting import eventually

A, B = "node-a", "node-b"
# Addresses of this machine that tell the nodes apart in URLs.
ADDRESSES = {A: "127.0.0.2", B: "127.0.0.3"}
CAPACITY = 3


@dataclass(frozen=True)
class Cluster:
    """The service with its engines by their nodes' names."""

    service: Service
    engines: dict[str, PrivateEngine]

    def start_worker(self, name: str, **environment: str) -> None:
        """Start the worker of a node, and wait for its first sign of life."""
        own = {"AW_NODE": name, "AW_DOCKER_HOST": self.engines[name].host, "AW_NODE_ADDRESS": ADDRESSES[name]}
        self.service.start_worker(name, **own, AW_NODE_CAPACITY=str(CAPACITY), **environment)

    def node(self, name: str) -> Node | None:
        """A node's row."""
        with self.service.database.reading() as session:
            return session.get(Node, name)

    def await_node(self, name: str, status: NodeStatus) -> Node:
        """A node's row once it has that status."""
        eventually(lambda: (self.node(name) or Node(id=name, status="", capacity=0)).status == status)
        found = self.node(name)
        assert found
        return found

    def node_of(self, sandbox_id: str) -> str | None:
        """Where the store says that a sandbox is."""
        with self.service.database.reading() as session:
            return session.get_one(Sandbox, sandbox_id).node_id

    def change(self, act: Callable[..., None], name: str) -> None:
        """Cordon or uncordon a node."""
        with self.service.database.transaction() as session:
            act(session, name)

    def found(self) -> dict[str, list[str]]:
        """The ids of the sandboxes that each engine has a container for."""
        return {name: sorted(n.removeprefix("aw-") for n in e.containers()) for name, e in self.engines.items()}


@pytest.fixture(scope="module")
def two_engines() -> Iterator[dict[str, PrivateEngine]]:
    """An engine for each node, with the tiny image."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(running_private_engine([TINY_IMAGE])) for name in (A, B)}


@pytest.fixture
def installed(database_url: str, valkey: Valkey, two_engines: dict[str, PrivateEngine]) -> Iterator[Cluster]:
    """The service, its API running, no worker yet."""
    with short_directory("nodes") as directory:
        engine = two_engines[A]
        service = Service(
            directory,
            database_url=database_url,
            broker_url=valkey.url,
            docker_host=engine.host,
            gateway=engine.gateway,
        )
        service.prepare(TINY_IMAGE)
        service.start_api()
        yield Cluster(service, two_engines)
        service.stop()
        sys.stdout.write(service.log())  # shown with a failure
    for engine in two_engines.values():
        engine.clear()


@pytest.fixture
def cluster(installed: Cluster) -> Cluster:
    """The service with both nodes READY."""
    for name in (A, B):
        installed.start_worker(name)
    for name in (A, B):
        installed.await_node(name, NodeStatus.READY)
    return installed


@pytest.fixture
def alice(installed: Cluster) -> Iterator[Client]:
    with installed.service.user("alice") as client:
        yield client


def start_many(alice: Client, count: int) -> list[str]:
    """So many sandboxes that run."""
    ids = [alice.start_sandbox() for _ in range(count)]
    for sandbox_id in ids:
        alice.await_sandbox(sandbox_id, "RUNNING")
    return ids


def url_of(found: dict[str, Any]) -> str:
    """Where a sandbox's agent server is, as the API says."""
    (url,) = [str(url["url"]) for url in found["exposed_urls"] if url["name"] == "AGENT_SERVER"]
    return url


def test_wishes_reach_the_node_with_the_sandbox(cluster: Cluster, alice: Client) -> None:
    first, second = start_many(alice, 2)
    assert cluster.found() == {A: [first], B: [second]}
    for sandbox_id, name in ((first, A), (second, B)):
        found = alice.sandbox(sandbox_id)
        assert found
        assert url_of(found).startswith(f"http://{ADDRESSES[name]}:")
        assert httpx.get(f"{url_of(found)}/ready", timeout=5).status_code == 200
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


def test_sandboxes_spread_by_free_slots_up_to_the_capacity(cluster: Cluster, alice: Client) -> None:
    ids = start_many(alice, 2 * CAPACITY)
    assert [cluster.node_of(sandbox_id) for sandbox_id in ids] == [A, B] * CAPACITY
    assert cluster.found() == {A: sorted(ids[::2]), B: sorted(ids[1::2])}
    one_more = alice.start_sandbox()
    assert cluster.node_of(one_more) is None
    assert alice.delete(f"/api/v1/sandboxes/{ids[1]}").status_code == 200
    alice.await_sandbox(one_more, "RUNNING")
    assert cluster.node_of(one_more) == B


def test_cordoned_node_gets_nothing_new_and_keeps_what_it_has(cluster: Cluster, alice: Client) -> None:
    (kept,) = start_many(alice, 1)
    cluster.change(nodes.cordon, A)
    new = start_many(alice, CAPACITY)
    assert cluster.found() == {A: [kept], B: sorted(new)}
    waiting = alice.start_sandbox()
    assert cluster.node_of(waiting) is None
    for verb, status in (("pause", "PAUSED"), ("resume", "RUNNING")):
        assert alice.post(f"/api/v1/sandboxes/{kept}/{verb}").status_code == 200
        alice.await_sandbox(kept, status)
    cluster.change(nodes.uncordon, A)
    alice.await_sandbox(waiting, "RUNNING")
    assert cluster.found()[A] == sorted([kept, waiting])


class TestLostNode:
    """Node A is lost with a sandbox that runs there."""

    @pytest.fixture
    def cluster(self, installed: Cluster) -> Cluster:
        installed.service.environment["AW_NODE_LOST_SECONDS"] = "3"
        for name in (A, B):
            installed.start_worker(name)
        for name in (A, B):
            installed.await_node(name, NodeStatus.READY)
        return installed

    @pytest.fixture
    def sandbox_id(self, cluster: Cluster, alice: Client) -> str:
        (sandbox_id,) = start_many(alice, 1)
        assert cluster.found() == {A: [sandbox_id], B: []}
        return sandbox_id

    @pytest.mark.parametrize("killed", [True, False])
    def test_sandbox_is_made_anew_elsewhere_and_never_runs_twice(
        self, cluster: Cluster, alice: Client, sandbox_id: str, killed: bool
    ) -> None:
        cluster.service.kill(A) if killed else cluster.service.freeze(A)
        self.await_told(cluster, alice, sandbox_id, "last heard of")
        new = start_many(alice, 1)
        assert cluster.found() == {A: [sandbox_id], B: new}
        self.resume_on_b(cluster, alice, sandbox_id)
        cluster.start_worker(A) if killed else cluster.service.wake(A)
        cluster.await_node(A, NodeStatus.READY)
        assert (cluster.found()[A], cluster.engines[A].volumes()) == ([], [])
        assert cluster.found()[B] == sorted([sandbox_id, *new])
        self.assert_usable(cluster, alice, sandbox_id)

    def test_engine_that_is_down(self, cluster: Cluster, alice: Client, sandbox_id: str) -> None:
        cluster.engines[A].stop()
        try:
            found = cluster.await_node(A, NodeStatus.LOST)
            assert "the engine does not answer" in (found.detail or "")
            # The engine may have said that the container ended, or not; `node_lost` is told by the next wish then.
            eventually(lambda: self.is_moved(cluster, alice, sandbox_id), deadline_seconds=60, interval_seconds=0.5)
        finally:
            cluster.engines[A].start()
        cluster.await_node(A, NodeStatus.READY)
        assert (cluster.found(), cluster.engines[A].volumes()) == ({A: [], B: [sandbox_id]}, [])
        self.assert_usable(cluster, alice, sandbox_id)

    def test_node_that_is_back_has_what_nobody_resumed(self, cluster: Cluster, alice: Client, sandbox_id: str) -> None:
        cluster.service.freeze(A)
        self.await_told(cluster, alice, sandbox_id, "last heard of")
        cluster.service.wake(A)
        eventually(lambda: (alice.sandbox(sandbox_id) or {})["status"] == "RUNNING")
        assert cluster.found() == {A: [sandbox_id], B: []}
        assert [move["to_status"] for move in alice.read(f"/api/v1/sandboxes/{sandbox_id}/transitions")] == [
            "STARTING",
            "RUNNING",
            "ERROR",
            "RUNNING",
        ]

    def test_sandbox_deleted_meanwhile_is_removed_when_the_node_is_back(
        self, cluster: Cluster, alice: Client, sandbox_id: str
    ) -> None:
        cluster.service.kill(A)
        self.await_told(cluster, alice, sandbox_id, "last heard of")
        assert alice.delete(f"/api/v1/sandboxes/{sandbox_id}").status_code == 200
        assert alice.sandbox(sandbox_id) is None
        cluster.start_worker(A)
        eventually(lambda: cluster.engines[A].volumes() == cluster.found()[A] == [])

    def await_told(self, cluster: Cluster, alice: Client, sandbox_id: str, words: str) -> None:
        assert words in (cluster.await_node(A, NodeStatus.LOST).detail or "")
        eventually(lambda: (alice.sandbox(sandbox_id) or {})["status"] == "ERROR")
        found = alice.sandbox(sandbox_id)
        assert found
        assert found["reason"] == "node_lost"
        assert A in found["detail"]
        assert "files" in found["detail"]

    def resume_on_b(self, cluster: Cluster, alice: Client, sandbox_id: str) -> None:
        assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 200
        eventually(lambda: (alice.sandbox(sandbox_id) or {})["status"] == "RUNNING")
        assert cluster.node_of(sandbox_id) == B
        assert url_of(alice.sandbox(sandbox_id) or {}).startswith(f"http://{ADDRESSES[B]}:")
        assert sandbox_id in cluster.found()[B]

    def is_moved(self, cluster: Cluster, alice: Client, sandbox_id: str) -> bool:
        found = alice.sandbox(sandbox_id) or {}
        if found["status"] == "ERROR":
            assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/resume").status_code == 200
        return found["status"] == "RUNNING" and cluster.node_of(sandbox_id) == B

    def assert_usable(self, cluster: Cluster, alice: Client, sandbox_id: str) -> None:
        for verb, status in (("pause", "PAUSED"), ("resume", "RUNNING")):
            assert alice.post(f"/api/v1/sandboxes/{sandbox_id}/{verb}").status_code == 200
            alice.await_sandbox(sandbox_id, status)
        assert sandbox_id not in cluster.found()[A]
        assert alice.delete(f"/api/v1/sandboxes/{sandbox_id}").status_code == 200
        eventually(lambda: sandbox_id not in cluster.found()[B])
