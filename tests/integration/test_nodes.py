"""Several nodes on real parts: two engines, a worker beside each, one store and one broker."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from shared.clock import now
from shared.models import Node, NodeRefusal, Sandbox
from shared.states import NodeStatus
from shared.store import nodes, refusals
from tests.services import http
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine, running_private_engine
from tests.services.service import Client, Service, installed_service
from tests.services.valkey import Valkey
from tests.waiting import eventually

A, B = "node-a", "node-b"
CAPACITY = 3


@dataclass(frozen=True)
class Cluster:
    """The service with its engines by their nodes' names."""

    service: Service
    engines: dict[str, PrivateEngine]

    def start_worker(self, name: str, **environment: str) -> None:
        """Start the worker of a node, and wait for its first sign of life."""
        engine = self.engines[name]
        own = {"AW_NODE": name, "AW_DOCKER_HOST": engine.host, "AW_NODE_ADDRESS": engine.address}
        self.service.start_worker(name, **own, AW_NODE_CAPACITY=str(CAPACITY), **environment)

    def address(self, name: str) -> str:
        """The address in the URLs of a node's sandboxes."""
        return self.engines[name].address

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

    def command(self, *arguments: str) -> None:
        """Type something, with success."""
        program = [str(Path(sys.executable).with_name("agent-workspace")), *arguments]
        subprocess.run(program, env=os.environ | self.service.environment, check=True, timeout=60)

    def change(self, act: Callable[..., None], name: str) -> None:
        """Cordon or uncordon a node."""
        with self.service.database.transaction() as session:
            act(session, name)

    def resting(self) -> list[NodeRefusal]:
        """Which nodes get no more of which specs now."""
        with self.service.database.reading() as session:
            return refusals.resting(session)

    def end_rests(self) -> None:
        """Let the time pass that they rest."""
        with self.service.database.transaction() as session:
            session.execute(update(NodeRefusal).values(rests_until=now()))

    def status_of(self, sandbox_id: str) -> str:
        """What the store says of a sandbox, deleted or not."""
        with self.service.database.reading() as session:
            return session.get_one(Sandbox, sandbox_id).status

    def forget(self, name: str) -> None:
        """Let the time pass after which a node can be forgotten, and forget it."""
        with self.service.database.transaction() as session:
            session.get_one(Node, name).heartbeat_at -= nodes.HEARTBEAT_LIMIT
        self.change(nodes.forget, name)

    def found(self) -> dict[str, list[str]]:
        """The ids of the sandboxes that each engine has a container for."""
        return {name: sorted(n.removeprefix("aw-") for n in e.containers()) for name, e in self.engines.items()}


@pytest.fixture(scope="module")
def two_engines() -> Iterator[dict[str, PrivateEngine]]:
    """An engine for each node, with the tiny image; A's disk can be filled."""
    with ExitStack() as stack:
        small, large = (running_private_engine([TINY_IMAGE], disk_bytes=size) for size in (64 * 1024**2, 0))
        yield {A: stack.enter_context(small), B: stack.enter_context(large)}


@pytest.fixture
def installed(database_url: str, valkey: Valkey, two_engines: dict[str, PrivateEngine]) -> Iterator[Cluster]:
    """The service, its API running, no worker yet."""
    with installed_service(database_url, valkey.url, two_engines[A]) as service:
        service.prepare(TINY_IMAGE)
        service.start_api()
        yield Cluster(service, two_engines)
    two_engines[A].free_disk()
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
        assert url_of(found).startswith(f"http://{cluster.address(name)}:")
        assert http.get(f"{url_of(found)}/ready", timeout=5).status_code == 200
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


def test_engine_has_one_name_and_a_name_one_engine(cluster: Cluster) -> None:
    service = cluster.service
    for name, engine in (("node-c", A), (A, B)):
        service.start_worker("misled", AW_NODE=name, AW_DOCKER_HOST=cluster.engines[engine].host)
        eventually(lambda: service.exit_code("misled") == 1)
        assert f"AW_NODE={engine}" in service.log()
    assert cluster.node("node-c") is None
    assert [cluster.await_node(name, NodeStatus.READY).id for name in (A, B)] == [A, B]


def test_node_with_a_full_disk_is_out_of_rotation_and_comes_back(cluster: Cluster, alice: Client) -> None:
    cluster.engines[A].fill_disk()
    ids = [start_many(alice, 1)[0] for _ in range(CAPACITY)]
    assert cluster.found() == {A: [], B: sorted(ids)}
    assert cluster.engines[A].volumes() == []
    (rest,) = cluster.resting()
    assert (rest.node_id, rest.failures) == (A, refusals.MOST_FAILURES)
    assert "no space left" in (rest.detail or "")
    waiting = alice.start_sandbox()
    assert cluster.node_of(waiting) is None
    cluster.engines[A].free_disk()
    cluster.end_rests()
    alice.await_sandbox(waiting, "RUNNING")
    assert cluster.found()[A] == [waiting]
    assert cluster.resting() == []
    assert cluster.node_of(start_many(alice, 1)[0]) == A


def test_drained_node_keeps_files_only(cluster: Cluster, alice: Client) -> None:
    ids = start_many(alice, 2)
    cluster.change(nodes.cordon, B)
    frozen, *_ = start_many(alice, 1)
    assert alice.post(f"/api/v1/sandboxes/{frozen}/pause").status_code == 200
    alice.await_sandbox(frozen, "PAUSED")
    assert cluster.found() == {A: sorted([ids[0], frozen]), B: [ids[1]]}
    cluster.command("nodes", "drain", A, "--yes")
    assert cluster.engines[A].docker("ps", "--quiet") == ""
    assert sorted(cluster.engines[A].volumes()) == sorted([f"aw-{ids[0]}", f"aw-{frozen}"])
    assert (alice.sandbox(frozen) or {})["pause_kind"] == "STOPPED"
    assert (alice.sandbox(ids[1]) or {})["status"] == "RUNNING"
    assert alice.post(f"/api/v1/sandboxes/{frozen}/resume").status_code == 200
    alice.await_sandbox(frozen, "RUNNING")  # where its files are
    assert cluster.node_of(frozen) == A
    cluster.command("nodes", "drain", A, "--yes")
    assert cluster.engines[A].docker("ps", "--quiet") == ""


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
        cluster.service.kill(A) if killed else cluster.service.freeze_between_writes(A)
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
        cluster.service.freeze_between_writes(A)
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

    def test_forgotten_node_that_comes_back_after_all(self, cluster: Cluster, alice: Client, sandbox_id: str) -> None:
        cluster.change(nodes.cordon, B)
        left, deleted, resumed = sandbox_id, *start_many(alice, 2)
        cluster.change(nodes.uncordon, B)
        cluster.service.freeze_between_writes(A)
        for each in (left, deleted, resumed):
            self.await_told(cluster, alice, each, "last heard of")
        assert alice.delete(f"/api/v1/sandboxes/{deleted}").status_code == 200
        cluster.forget(A)
        eventually(lambda: cluster.status_of(deleted) == "DELETED")
        self.resume_on_b(cluster, alice, resumed)
        assert cluster.found()[A] == sorted([left, deleted, resumed])
        cluster.service.wake(A)
        cluster.await_node(A, NodeStatus.READY)
        assert cluster.found() == {A: [left], B: [resumed]}
        assert cluster.engines[A].volumes() == [f"aw-{left}"]
        eventually(lambda: (alice.sandbox(left) or {})["status"] == "RUNNING")

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
        assert url_of(alice.sandbox(sandbox_id) or {}).startswith(f"http://{cluster.address(B)}:")
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
