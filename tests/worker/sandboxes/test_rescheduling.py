"""A sandbox that one engine refuses is rescheduled to another node, and the first node's circuit breaker may open."""

from dataclasses import replace

import pytest
from sqlmodel import select

from shared.models import Node, NodeSpecBackoff, Sandbox, StaleContainer
from shared.nodes import placement
from shared.states import Desired, Reason, Status
from tests.factories import NODE_ID, ApiUser
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import another, assert_at_rest, change, hooked_context, row, running, set_desired, start
from worker.context import WorkerContext
from worker.engine.docker_engine import SANDBOX_LABEL
from worker.engine.protocol import ContainerState
from worker.loops.heartbeat import send_heartbeat
from worker.loops.resync import resync
from worker.loops.sweep import sweep
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

OFTEN = 1000
# A move passes at least and fewer than these numbers of points.
MIN_POINTS, MAX_POINTS = 10, 20


@pytest.fixture(autouse=True)
def _first_choice(context: WorkerContext, other_worker: WorkerContext) -> None:
    """New sandboxes go to `node-a` first."""
    change(context, Node, NODE_ID, capacity=200)
    assert other_worker.settings.node == "node-b"


def refusing(engine: FakeEngine, verb: str, times: int = OFTEN) -> None:
    engine.refuse[verb] = times
    if verb == "pull":
        engine.images.clear()


def refused(context: WorkerContext, user: ApiUser) -> str:
    """A sandbox that `node-a` has refused."""
    sandbox_id = start(context, user)
    reconcile(context, sandbox_id)
    return sandbox_id


def known(context: WorkerContext) -> list[tuple[str, int]]:
    with context.database.reading() as session:
        return [(found.node_id, found.failures) for found in session.exec(select(NodeSpecBackoff)).all()]


@pytest.mark.parametrize("verb", ["create", "put_file", "start", "pull"])
def test_rescheduled_sandbox_runs_and_leaves_no_stale_container(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine, verb: str
) -> None:
    refusing(engine, verb)
    sandbox_id = refused(context, user)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.node_id, found.attempt) == (Status.STARTING, "node-b", 0)
    assert "refused" in (found.detail or "")
    assert (engine.containers, engine.volumes) == ({}, {})
    sweep(other_worker)
    reconcile(other_worker, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason, found.detail) == (Status.RUNNING, None, None)
    assert_at_rest(found)
    assert known(context) == [(NODE_ID, 1)]


def test_sweep_of_the_other_node_finds_it(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    refusing(engine, "create")
    sandbox_id = refused(context, user)
    sweep(other_worker)
    assert [job.subject for job in other_worker.publisher.jobs] == [sandbox_id]  # type: ignore[attr-defined]


def test_node_with_failures_gets_no_starts_until_its_backoff_is_over(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    refusing(engine, "create")
    for _ in range(placement.MAX_FAILURES):
        reconcile(other_worker, refused(context, user))
    assert row(context, Sandbox, start(context, user)).node_id == "node-b"
    engine.refuse.clear()
    with context.database.transaction() as session:
        session.exec(select(NodeSpecBackoff)).one().backoff_until = row(context, Node, NODE_ID).heartbeat_at  # over
    half_open = start(context, user)
    assert row(context, Sandbox, half_open).node_id == NODE_ID
    assert row(context, Sandbox, start(context, user)).node_id == "node-b"
    reconcile(context, half_open)
    assert row(context, Sandbox, half_open).status == Status.RUNNING
    assert known(context) == []
    assert row(context, Sandbox, start(context, user)).node_id == NODE_ID


@pytest.mark.parametrize(
    ("verb", "reason"),
    [("create", Reason.CREATE_FAILED), ("start", Reason.START_FAILED), ("pull", Reason.CREATE_FAILED)],
)
def test_broken_spec_opens_no_circuit_breaker(
    context: WorkerContext,
    other_worker: WorkerContext,
    user: ApiUser,
    engine: FakeEngine,
    other_engine: FakeEngine,
    verb: str,
    reason: Reason,
) -> None:
    for each in (engine, other_engine):
        refusing(each, verb)
    for _ in range(placement.MAX_FAILURES + 1):
        sandbox_id = refused(context, user)
        for _ in range(context.settings.max_attempts):
            reconcile(other_worker, sandbox_id)
        found = row(context, Sandbox, sandbox_id)
        assert (found.status, found.node_id) == (Status.ERROR, "node-b")
        assert found.reason == reason
        assert found.detail
    assert (engine.containers, other_engine.containers) == ({}, {})
    assert known(context) == []
    assert row(context, Sandbox, start(context, user)).node_id == NODE_ID


def test_new_desired_state_may_return_to_the_first_node(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine, other_engine: FakeEngine
) -> None:
    refusing(engine, "create", 1)
    refusing(other_engine, "create")
    sandbox_id = refused(context, user)
    for _ in range(context.settings.max_attempts):
        reconcile(other_worker, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.ERROR
    set_desired(context, sandbox_id, Desired.RUNNING)
    reconcile(other_worker, sandbox_id)
    reconcile(context, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.node_id) == (Status.RUNNING, NODE_ID)
    assert known(context) == [("node-b", 1)]
    with context.database.reading() as session:
        assert [left.node_id for left in session.exec(select(StaleContainer)).all()] == ["node-b"]


def test_sandbox_that_was_ready_stays_with_its_files(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    sandbox_id = running(context, user)
    set_desired(context, sandbox_id, Desired.STOPPED)
    reconcile(context, sandbox_id)
    refusing(engine, "start")
    set_desired(context, sandbox_id, Desired.RUNNING)
    for _ in range(context.settings.max_attempts):
        reconcile(context, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason, found.node_id) == (Status.ERROR, Reason.START_FAILED, NODE_ID)
    assert container_name(sandbox_id) in engine.volumes


def test_sandbox_that_can_not_be_removed_is_not_moved(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    refusing(engine, "start", 1)
    refusing(engine, "remove", 1)
    sandbox_id = refused(context, user)
    assert row(context, Sandbox, sandbox_id).node_id == NODE_ID
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING


def test_sandbox_stays_where_no_other_node_has_room(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    change(context, Node, "node-b", capacity=0)
    refusing(engine, "create")
    sandbox_id = refused(context, user)
    found = row(context, Sandbox, sandbox_id)
    assert (found.node_id, found.attempt) == (NODE_ID, 1)
    change(context, Node, "node-b", capacity=1)
    reconcile(context, sandbox_id)
    reconcile(other_worker, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING


def test_delete_overtakes_the_move(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    refusing(engine, "create")
    sandbox_id = start(context, user)
    engine.before["remove"] = lambda _name: set_desired(context, sandbox_id, Desired.DELETED)
    reconcile(context, sandbox_id)
    reconcile(other_worker, sandbox_id)
    assert row(context, Sandbox, sandbox_id).status == Status.DELETED
    assert known(context) == []


def test_worker_without_its_lease_does_not_reschedule(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    sandbox_id = start(context, user)

    def take_over(_name: str) -> None:
        engine.before.clear()
        change(context, Sandbox, sandbox_id, lease_until=row(context, Node, NODE_ID).heartbeat_at)
        reconcile(another(context), sandbox_id)
        refusing(engine, "create", 1)

    engine.before["create"] = take_over
    reconcile(context, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert (found.node_id, found.status) == (NODE_ID, Status.RUNNING)
    assert engine.containers[container_name(sandbox_id)].state == ContainerState.RUNNING


def test_worker_that_loses_its_lease_while_it_removes_moves_nothing(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    refusing(engine, "create", 1)
    sandbox_id = start(context, user)
    engine.before["remove"] = lambda _name: change(context, Sandbox, sandbox_id, fence=100)
    reconcile(context, sandbox_id)
    assert row(context, Sandbox, sandbox_id).node_id == NODE_ID


def test_container_that_a_slow_worker_creates_late_is_removed(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    refusing(engine, "create", 1)
    sandbox_id = refused(context, user)
    reconcile(other_worker, sandbox_id)
    late = start(context, user)
    reconcile(context, late)
    name = container_name(sandbox_id)
    created = engine.containers[container_name(late)]
    request = replace(created.request, name=name, labels={**created.request.labels, SANDBOX_LABEL: sandbox_id})
    engine.containers[name] = replace(created, request=request, container_id="late")
    engine.volumes[name] = engine.volumes[container_name(late)]
    resync(context)
    assert set(engine.containers) == set(engine.volumes) == {container_name(late)}


def test_tombstones_of_deleted_sandboxes_are_deleted(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    refusing(engine, "create", 2)
    gone, kept = refused(context, user), refused(context, user)
    for sandbox_id in (gone, kept):
        reconcile(other_worker, sandbox_id)
    set_desired(context, gone, Desired.DELETED)
    reconcile(other_worker, gone)
    send_heartbeat(context)
    with context.database.reading() as session:
        assert [left.sandbox_id for left in session.exec(select(StaleContainer)).all()] == [kept]


@pytest.mark.parametrize("at", range(MAX_POINTS))
def test_worker_that_dies_during_the_move_loses_nothing(
    context: WorkerContext, other_worker: WorkerContext, user: ApiUser, engine: FakeEngine, at: int
) -> None:
    class Death(BaseException):
        pass

    def die() -> None:
        raise Death

    refusing(engine, "create", 1)
    sandbox_id = start(context, user)
    dying, points = hooked_context(context, at, die)
    try:
        reconcile(dying, sandbox_id)
    except Death:
        assert at < MAX_POINTS - 1
        change(context, Sandbox, sandbox_id, lease_until=row(context, Node, NODE_ID).heartbeat_at)
    else:
        assert MIN_POINTS <= points.passed <= at
    for _ in range(2):
        reconcile(context, sandbox_id)
        reconcile(other_worker, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert found.status == Status.RUNNING
    states = [
        each.containers[container_name(sandbox_id)].state for each in engines(context, other_worker) if each.containers
    ]
    assert states == [ContainerState.RUNNING]


def engines(*workers: WorkerContext) -> list[FakeEngine]:
    found = [each.engine for each in workers]
    assert all(isinstance(each, FakeEngine) for each in found)
    return found  # type: ignore[return-value]
