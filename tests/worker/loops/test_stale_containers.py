"""Stale containers, on the node that their sandboxes moved away from."""

import threading
from dataclasses import replace
from functools import partial

import pytest

from shared.models import Node, Sandbox
from shared.states import Desired, NodeStatus, Status
from tests.factories import NODE_ID, ApiUser
from tests.fakes.engine import FakeEngine
from tests.worker.engine.contents import put, sandbox_without_row
from tests.worker.loops.failover.nodes import LIMIT, jobs, lose, status_of
from tests.worker.loops.test_stuck_containers import stick
from tests.worker.scenarios import change, deliver, row, running, set_desired
from worker.context import WorkerContext
from worker.engine.protocol import EngineUnavailable
from worker.loops.heartbeat import send_heartbeat
from worker.loops.resync import resync
from worker.loops.stale_containers import find_unreaped
from worker.sandboxes.container_spec import container_name


def move(context: WorkerContext, *ids: str) -> None:
    """Lose the node of the sandboxes, and resume them on another one."""
    lose(context)
    for sandbox_id in ids:
        set_desired(context, sandbox_id, Desired.RUNNING)
    lose(context)
    deliver(context)


def run_here(context: WorkerContext, user: ApiUser, number: int) -> list[str]:
    """Start sandboxes on `node-a`, in the order of their ids."""
    change(context, Node, "node-b", capacity=0)
    ids = sorted(running(context, user) for _ in range(number))
    change(context, Node, "node-b", capacity=200)
    return ids


@pytest.fixture
def moved_sandbox(context: WorkerContext, other_worker: WorkerContext, user: ApiUser) -> str:
    """A sandbox that runs on `node-b`, while `node-a` is lost and still has its former container."""
    sandbox_id = running(context, user)
    move(other_worker, sandbox_id)
    assert row(other_worker, Sandbox, sandbox_id).node_id == "node-b"
    return sandbox_id


@pytest.mark.parametrize("trouble", ["fail", "refuse"])
@pytest.mark.parametrize("verb", ["remove", "list_containers", "list_volumes", "list_unlabelled_volumes"])
@pytest.mark.usefixtures("moved_sandbox")
def test_node_is_ready_although_its_engine_does_not_remove_a_container(
    context: WorkerContext, engine: FakeEngine, trouble: str, verb: str
) -> None:
    getattr(engine, trouble)[verb] = 1
    send_heartbeat(context)
    assert (status_of(context), row(context, Node, NODE_ID).detail) == (NodeStatus.READY, None)
    assert len(engine.containers) == 1
    resync(context)
    assert (engine.containers, engine.volumes) == ({}, {})


def test_container_of_another_sandbox_that_has_the_name_is_kept(
    context: WorkerContext, engine: FakeEngine, user: ApiUser, moved_sandbox: str
) -> None:
    kept = engine.containers.pop(put(engine, sandbox_without_row(user)))
    kept.request = replace(kept.request, name=container_name(moved_sandbox))
    engine.containers[kept.request.name] = kept
    send_heartbeat(context)
    assert list(engine.containers.values()) == [kept]
    assert container_name(moved_sandbox) not in engine.volumes


@pytest.mark.usefixtures("moved_sandbox")
def test_lost_node_is_not_ready_before_a_resync_has_removed_the_container(
    context: WorkerContext, engine: FakeEngine
) -> None:
    heartbeat = threading.Thread(target=send_heartbeat, args=(context,))

    def remove(_: str) -> None:
        engine.before.pop("remove")
        heartbeat.start()
        heartbeat.join(0.5)
        assert heartbeat.is_alive()
        assert status_of(context) == NodeStatus.LOST

    engine.before["remove"] = remove
    resync(context)
    heartbeat.join()
    assert (status_of(context), engine.containers) == (NodeStatus.READY, {})


@pytest.mark.usefixtures("moved_sandbox")
def test_heartbeat_repeats_no_removal_that_a_resync_has_just_failed(context: WorkerContext, engine: FakeEngine) -> None:
    heartbeat = threading.Thread(target=send_heartbeat, args=(context,))

    def remove(_: str) -> None:
        if not heartbeat.ident:
            heartbeat.start()
            heartbeat.join(0.5)
        raise EngineUnavailable("timeout")

    engine.before["remove"] = remove
    resync(context)
    heartbeat.join()
    assert [verb for verb, _ in engine.calls].count("remove") == 1
    assert status_of(context) == NodeStatus.READY


@pytest.mark.usefixtures("moved_sandbox")
def test_container_that_is_left_is_reported_until_it_is_removed(context: WorkerContext, engine: FakeEngine) -> None:
    context.impairment_checks.append(partial(find_unreaped, context))
    [name] = engine.containers
    engine.fail["remove"] = 2
    send_heartbeat(context)
    assert name in str(row(context, Node, NODE_ID).impaired_reason)
    resync(context)
    send_heartbeat(context)
    assert name in str(row(context, Node, NODE_ID).impaired_reason)
    resync(context)
    send_heartbeat(context)
    assert row(context, Node, NODE_ID).impaired_reason is None


@pytest.mark.usefixtures("moved_sandbox")
def test_heartbeat_of_a_ready_node_does_not_list_containers(context: WorkerContext, engine: FakeEngine) -> None:
    send_heartbeat(context)
    engine.calls.clear()
    send_heartbeat(context)
    assert [verb for verb, _ in engine.calls] == ["read_id"]
    assert status_of(context) == NodeStatus.READY


def test_container_that_appears_later_is_removed(
    context: WorkerContext,
    other_worker: WorkerContext,
    moved_sandbox: str,
    engine: FakeEngine,
    other_engine: FakeEngine,
) -> None:
    late = engine.containers[container_name(moved_sandbox)]
    send_heartbeat(context)
    engine.containers[late.request.name] = late
    resync(context)
    assert engine.containers == {}
    resync(other_worker)
    assert list(other_engine.containers) == [container_name(moved_sandbox)]


def test_removal_without_a_response_does_not_delay_others(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    ids = run_here(context, user, 3)
    move(other_worker, *ids)
    stuck = container_name(ids[0])
    stick(engine, stuck)
    send_heartbeat(context)
    assert status_of(context) == NodeStatus.READY
    assert set(engine.containers) == {stuck}


def test_removals_of_stuck_containers_take_turns(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    ids = run_here(context, user, 3)
    move(other_worker, *ids)
    first, second, third = map(container_name, ids)
    stick(engine, first, second, third)
    resync(context)
    resync(context)
    stick(engine, first)
    resync(context)
    resync(context)
    assert set(engine.containers) == {first}


@pytest.mark.parametrize("verb", ["list_containers", "list_unlabelled_volumes"])
def test_container_of_a_sandbox_that_moves_back_during_the_listing_is_kept(
    context: WorkerContext, moved_sandbox: str, engine: FakeEngine, verb: str
) -> None:
    send_heartbeat(context)
    jobs(context).clear()
    back = replace(context, settings=context.settings.model_copy(update={"node_lost_seconds": LIMIT}))

    def move_back(_name: str) -> None:
        engine.before.clear()
        move(back, moved_sandbox)
        assert row(back, Sandbox, moved_sandbox).status == Status.RUNNING

    engine.before[verb] = move_back
    change(context, Node, NODE_ID, detail="its worker stood still")
    send_heartbeat(context)
    resync(context)
    assert (row(back, Sandbox, moved_sandbox).node_id, list(engine.containers)) == (
        NODE_ID,
        [container_name(moved_sandbox)],
    )
    assert list(engine.volumes) == [container_name(moved_sandbox)]


def test_sandbox_that_moves_back_during_another_removal_is_kept(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    ids = run_here(context, user, 2)
    move(other_worker, *ids)
    engine.before["remove"] = lambda _name: change(context, Sandbox, ids[1], node_id=NODE_ID)
    send_heartbeat(context)
    assert list(engine.containers) == list(engine.volumes) == [container_name(ids[1])]
