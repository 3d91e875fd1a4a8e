"""A sandbox that one engine refuses is tried on another node, and what that shows of the first one."""

import pytest
from sqlmodel import select

from shared.models import Node, NodeRefusal, Sandbox, SandboxLeftover
from shared.states import Desired, Reason, Status
from shared.store import refusals
from tests.factories import NODE_ID, Person
from tests.fakes.engine import FakeEngine
from tests.worker.scenes import another, assert_at_rest, change, punctuated, row, running, start, wish
from worker.containers import ContainerState
from worker.converge import converge
from worker.node import beat
from worker.parts import Parts
from worker.sandbox_container import container_name
from worker.sweep import sweep

OFTEN = 1000


@pytest.fixture(autouse=True)
def _first_choice(parts: Parts, other: Parts) -> None:
    """New sandboxes go to `node-a` first."""
    change(parts, Node, NODE_ID, capacity=200)
    assert other.settings.node == "node-b"


def refusing(engine: FakeEngine, verb: str, times: int = OFTEN) -> None:
    engine.refuse[verb] = times
    if verb == "pull":
        engine.images.clear()


def refused(parts: Parts, user: Person) -> str:
    """A sandbox that `node-a` has refused once."""
    sandbox_id = start(parts, user)
    converge(parts, sandbox_id)
    return sandbox_id


def known(parts: Parts) -> list[tuple[str, int]]:
    with parts.database.reading() as session:
        return [(found.node_id, found.failures) for found in session.exec(select(NodeRefusal)).all()]


@pytest.mark.parametrize("verb", ["create", "put_file", "start", "pull"])
def test_runs_elsewhere_and_leaves_nothing_behind(
    parts: Parts, other: Parts, user: Person, engine: FakeEngine, verb: str
) -> None:
    refusing(engine, verb)
    sandbox_id = refused(parts, user)
    found = row(parts, Sandbox, sandbox_id)
    assert (found.status, found.node_id, found.attempt) == (Status.STARTING, "node-b", 0)
    assert "refused" in (found.detail or "")
    assert (engine.containers, engine.volumes) == ({}, {})
    sweep(other)
    converge(other, sandbox_id)
    found = row(parts, Sandbox, sandbox_id)
    assert (found.status, found.reason, found.detail) == (Status.RUNNING, None, None)
    assert_at_rest(found)
    assert known(parts) == [(NODE_ID, 1)]


def test_the_other_node_s_sweep_finds_it(parts: Parts, other: Parts, user: Person, engine: FakeEngine) -> None:
    refusing(engine, "create")
    sandbox_id = refused(parts, user)
    sweep(other)
    assert [job.subject for job in other.publisher.jobs] == [sandbox_id]  # type: ignore[attr-defined]


def test_the_bad_node_is_out_of_rotation_and_comes_back(
    parts: Parts, other: Parts, user: Person, engine: FakeEngine
) -> None:
    refusing(engine, "create")
    for _ in range(refusals.MOST_FAILURES):
        converge(other, refused(parts, user))
    assert row(parts, Sandbox, start(parts, user)).node_id == "node-b"
    engine.refuse.clear()
    with parts.database.transaction() as session:
        session.exec(select(NodeRefusal)).one().rests_until = row(parts, Node, NODE_ID).heartbeat_at  # over
    trial = start(parts, user)
    assert row(parts, Sandbox, trial).node_id == NODE_ID
    assert row(parts, Sandbox, start(parts, user)).node_id == "node-b"
    converge(parts, trial)
    assert row(parts, Sandbox, trial).status == Status.RUNNING
    assert known(parts) == []
    assert row(parts, Sandbox, start(parts, user)).node_id == NODE_ID


@pytest.mark.parametrize(
    ("verb", "reason"),
    [("create", Reason.CREATE_FAILED), ("start", Reason.START_FAILED), ("pull", Reason.CREATE_FAILED)],
)
def test_a_spec_that_is_broken_costs_no_node_anything(
    parts: Parts,
    other: Parts,
    user: Person,
    engine: FakeEngine,
    other_engine: FakeEngine,
    verb: str,
    reason: Reason,
) -> None:
    for each in (engine, other_engine):
        refusing(each, verb)
    for _ in range(refusals.MOST_FAILURES + 1):
        sandbox_id = refused(parts, user)
        for _ in range(parts.settings.most_attempts):
            converge(other, sandbox_id)
        found = row(parts, Sandbox, sandbox_id)
        assert (found.status, found.node_id) == (Status.ERROR, "node-b")
        assert found.reason == reason
        assert found.detail
    assert (engine.containers, other_engine.containers) == ({}, {})
    assert known(parts) == []
    assert row(parts, Sandbox, start(parts, user)).node_id == NODE_ID


def test_a_new_wish_may_go_back(
    parts: Parts, other: Parts, user: Person, engine: FakeEngine, other_engine: FakeEngine
) -> None:
    refusing(engine, "create", 1)
    refusing(other_engine, "create")
    sandbox_id = refused(parts, user)
    for _ in range(parts.settings.most_attempts):
        converge(other, sandbox_id)
    assert row(parts, Sandbox, sandbox_id).status == Status.ERROR
    wish(parts, sandbox_id, Desired.RUNNING)
    converge(other, sandbox_id)
    converge(parts, sandbox_id)
    found = row(parts, Sandbox, sandbox_id)
    assert (found.status, found.node_id) == (Status.RUNNING, NODE_ID)
    assert known(parts) == [("node-b", 1)]
    with parts.database.reading() as session:
        assert [left.node_id for left in session.exec(select(SandboxLeftover)).all()] == ["node-b"]


def test_sandbox_that_was_ready_stays_with_its_files(parts: Parts, user: Person, engine: FakeEngine) -> None:
    sandbox_id = running(parts, user)
    wish(parts, sandbox_id, Desired.STOPPED)
    converge(parts, sandbox_id)
    refusing(engine, "start")
    wish(parts, sandbox_id, Desired.RUNNING)
    for _ in range(parts.settings.most_attempts):
        converge(parts, sandbox_id)
    found = row(parts, Sandbox, sandbox_id)
    assert (found.status, found.reason, found.node_id) == (Status.ERROR, Reason.START_FAILED, NODE_ID)
    assert container_name(sandbox_id) in engine.volumes


def test_sandbox_that_can_not_be_removed_is_not_moved(parts: Parts, user: Person, engine: FakeEngine) -> None:
    refusing(engine, "start", 1)
    refusing(engine, "remove", 1)
    sandbox_id = refused(parts, user)
    assert row(parts, Sandbox, sandbox_id).node_id == NODE_ID
    converge(parts, sandbox_id)
    assert row(parts, Sandbox, sandbox_id).status == Status.RUNNING


def test_sandbox_stays_where_no_other_node_has_room(
    parts: Parts, other: Parts, user: Person, engine: FakeEngine
) -> None:
    change(parts, Node, "node-b", capacity=0)
    refusing(engine, "create")
    sandbox_id = refused(parts, user)
    found = row(parts, Sandbox, sandbox_id)
    assert (found.node_id, found.attempt) == (NODE_ID, 1)
    change(parts, Node, "node-b", capacity=1)
    converge(parts, sandbox_id)
    converge(other, sandbox_id)
    assert row(parts, Sandbox, sandbox_id).status == Status.RUNNING


def test_delete_overtakes_the_move(parts: Parts, other: Parts, user: Person, engine: FakeEngine) -> None:
    refusing(engine, "create")
    sandbox_id = start(parts, user)
    engine.before["remove"] = lambda _name: wish(parts, sandbox_id, Desired.DELETED)
    converge(parts, sandbox_id)
    converge(other, sandbox_id)
    assert row(parts, Sandbox, sandbox_id).status == Status.DELETED
    assert known(parts) == []


def test_worker_that_has_lost_its_lease_touches_nothing(parts: Parts, user: Person, engine: FakeEngine) -> None:
    sandbox_id = start(parts, user)

    def take_over(_name: str) -> None:
        engine.before.clear()
        change(parts, Sandbox, sandbox_id, lease_until=row(parts, Node, NODE_ID).heartbeat_at)
        converge(another(parts), sandbox_id)
        refusing(engine, "create", 1)

    engine.before["create"] = take_over
    converge(parts, sandbox_id)
    found = row(parts, Sandbox, sandbox_id)
    assert (found.node_id, found.status) == (NODE_ID, Status.RUNNING)
    assert engine.containers[container_name(sandbox_id)].state == ContainerState.RUNNING


def test_worker_that_loses_its_lease_while_it_removes_moves_nothing(
    parts: Parts, user: Person, engine: FakeEngine
) -> None:
    refusing(engine, "create", 1)
    sandbox_id = start(parts, user)
    engine.before["remove"] = lambda _name: change(parts, Sandbox, sandbox_id, fence=100)
    converge(parts, sandbox_id)
    assert row(parts, Sandbox, sandbox_id).node_id == NODE_ID


def test_container_that_a_slow_worker_makes_late_is_removed(
    parts: Parts, other: Parts, user: Person, engine: FakeEngine
) -> None:
    refusing(engine, "create", 1)
    sandbox_id = refused(parts, user)
    converge(other, sandbox_id)
    late = start(parts, user)
    converge(parts, late)
    name = container_name(sandbox_id)
    engine.containers[name] = engine.containers[container_name(late)]
    engine.volumes[name] = engine.volumes[container_name(late)]
    beat(parts)
    assert set(engine.containers) == set(engine.volumes) == {container_name(late)}


def test_tombstones_are_forgotten(parts: Parts, other: Parts, user: Person, engine: FakeEngine) -> None:
    refusing(engine, "create", 2)
    gone, kept = refused(parts, user), refused(parts, user)
    for sandbox_id in (gone, kept):
        converge(other, sandbox_id)
    wish(parts, gone, Desired.DELETED)
    converge(other, gone)
    beat(parts)
    with parts.database.reading() as session:
        assert [left.sandbox_id for left in session.exec(select(SandboxLeftover)).all()] == [kept]


@pytest.mark.parametrize("at", range(40))
def test_worker_that_dies_on_the_way_loses_nothing(
    parts: Parts, other: Parts, user: Person, engine: FakeEngine, at: int
) -> None:
    class Death(BaseException):
        pass

    def die() -> None:
        raise Death

    refusing(engine, "create", 1)
    sandbox_id = start(parts, user)
    dying, points = punctuated(parts, at, die)
    try:
        converge(dying, sandbox_id)
    except Death:
        change(parts, Sandbox, sandbox_id, lease_until=row(parts, Node, NODE_ID).heartbeat_at)
    else:
        assert points.passed <= at
    for _ in range(2):
        converge(parts, sandbox_id)
        converge(other, sandbox_id)
    found = row(parts, Sandbox, sandbox_id)
    assert found.status == Status.RUNNING
    here = [each.containers[container_name(sandbox_id)].state for each in engines(parts, other) if each.containers]
    assert here == [ContainerState.RUNNING]


def engines(*workers: Parts) -> list[FakeEngine]:
    found = [each.engine for each in workers]
    assert all(isinstance(each, FakeEngine) for each in found)
    return found  # type: ignore[return-value]
