"""Nodes: boot of their worker, heartbeats, cordon, loss, and stale containers."""

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import update
from sqlmodel import col

from shared.clock import now
from shared.models import Node, Sandbox, SandboxTransition, StaleContainer
from shared.nodes import registry as node_registry
from shared.states import NodeStatus, Status
from tests.drills.faults.operation import Operation, no_check, routine
from tests.drills.faults.operations.drift import leave_container
from tests.drills.faults.runner import Runner
from tests.drills.faults.specs import FRAGILE_IMAGE
from tests.drills.faults.user_requests import LONG, record_request
from tests.drills.requests import Verb
from tests.factories import make_node, make_sandbox
from tests.services.engine import TINY_IMAGE
from tests.waiting import eventually
from worker.network.addresses import network_name

ELSEWHERE = "node-elsewhere"


# --- the worker's boot ------------------------------------------------------------------------------------------------


def no_worker(runner: Runner) -> str:
    """A node without a worker."""
    runner.service.kill("worker")
    return ""


def no_network(runner: Runner) -> str:
    """A node without a worker, a network and rules, as after a reboot without containers."""
    runner.service.kill("worker")
    runner.engine.docker("network", "rm", network_name(runner.bounds.bridge))
    runner.bounds.flush_rules()
    return ""


def _boot_worker(runner: Runner, _subject: str) -> None:
    """Start a worker, and wait until it has sent a heartbeat or died."""
    began = now()
    runner.start_process("worker")
    eventually(lambda: runner.is_dead("worker") or _heartbeat(runner) > began)


def _heartbeat(runner: Runner) -> datetime:
    with runner.service.database.reading() as session:
        return session.get_one(Node, runner.service.environment["AW_NODE"]).heartbeat_at


# --- cordon -----------------------------------------------------------------------------------------------------------


def waiting(runner: Runner) -> str:
    """A sandbox that was started while every node was cordoned."""
    with runner.service.database.transaction() as session:
        node_registry.cordon(session, runner.service.environment["AW_NODE"])
    sandbox_id = runner.client.start(TINY_IMAGE)
    assert sandbox_id is not None
    return sandbox_id


def _uncordon(runner: Runner, _subject: str) -> None:
    with runner.service.database.transaction() as session:
        node_registry.uncordon(session, runner.service.environment["AW_NODE"])


# --- another node -----------------------------------------------------------------------------------------------------


def lost(runner: Runner) -> str:
    """A sandbox on a node without a recent heartbeat, which is not marked lost yet.

    An earlier operation of this lane may have left the node. If it were marked already, its loss would be one write
    less, and the process would not reach its point.
    """
    make_node(runner.service.database, ELSEWHERE)
    with runner.service.database.transaction() as session:
        silent = {"status": NodeStatus.READY, "detail": None, "heartbeat_at": now() - LONG}
        session.execute(update(Node).where(col(Node.id) == ELSEWHERE).values(**silent))
    return _sandbox_elsewhere(runner, Status.STARTING, Status.RUNNING)


def _is_lost(runner: Runner, sandbox_id: str) -> None:
    """Assert that the lost sandbox is in ERROR; move it to this node, so that it can be deleted."""
    here = runner.service.environment["AW_NODE"]
    with runner.service.database.transaction() as session:
        assert session.get_one(Sandbox, sandbox_id).status == Status.ERROR
        session.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(node_id=here))
        session.execute(update(Node).where(col(Node.id) == ELSEWHERE).values(status=NodeStatus.READY, detail=None))


def moved_away(runner: Runner) -> str:
    """A sandbox that was recreated on another node and deleted there, while this lost node has its stale container."""
    make_node(runner.service.database, ELSEWHERE, status=NodeStatus.CORDONED)
    sandbox_id = _sandbox_elsewhere(runner, Status.STARTING, Status.DELETING, Status.DELETED)
    here = runner.service.environment["AW_NODE"]
    with runner.service.database.transaction() as session:
        session.add(StaleContainer(node_id=here, sandbox_id=sandbox_id))
        session.execute(update(Node).where(col(Node.id) == here).values(status=NodeStatus.LOST, detail="silent"))
    return sandbox_id


def _sandbox_elsewhere(runner: Runner, *path: Status) -> str:
    """A sandbox on the other node with these transitions."""
    sandbox = make_sandbox(
        runner.service.database,
        runner.client.user,
        status=path[-1],
        spec_id=FRAGILE_IMAGE,
        node_id=ELSEWHERE,
    )
    with runner.service.database.transaction() as session:
        for before, after in zip((None, *path), path, strict=False):
            session.add(SandboxTransition(sandbox_id=sandbox.id, from_status=before, to_status=after))
    record_request(runner, Verb.START, sandbox.id)
    if path[-1] == Status.DELETED:
        record_request(runner, Verb.DELETE, sandbox.id)
    return sandbox.id


OPERATIONS: Mapping[str, Operation] = {
    "boot": Operation(owns=frozenset({"process"}), prepare=no_worker, act=_boot_worker),
    "boot-without-a-network": Operation(owns=frozenset({"process"}), prepare=no_network, act=_boot_worker),
    "sweep-of-sandboxes-without-a-node": routine("sweep", prepare=waiting, act=_uncordon),
    "heartbeat-with-a-stale-container": routine("heartbeat", prepare=moved_away, act=leave_container),
    "lost-node": routine("nodes", prepare=lost, act=no_check, verify=_is_lost),
}
