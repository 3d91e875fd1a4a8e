"""A lost node's sandboxes start on another one; a node that is back removes its own copies."""

from dataclasses import replace

import pytest
from sqlmodel import select

from shared.jobs import ResumeSandbox
from shared.models import Node, Sandbox, SandboxLeftover
from shared.states import Desired, NodeStatus, Reason, Status
from shared.store import sandboxes
from tests.factories import NODE_ID, Person, make_sandbox
from tests.fakes.engine import FakeEngine
from tests.worker.lost_nodes.nodes import LIMIT, jobs, lose, status_of
from tests.worker.scenes import assert_at_rest, change, deliver, punctuated, row, running, wish
from worker.containers import ContainerState
from worker.converge import converge
from worker.node import beat
from worker.parts import Parts
from worker.resync import resync
from worker.sandbox_container import container_name


class TestResumeElsewhere:
    @pytest.fixture
    def moved(self, parts: Parts, other: Parts, user: Person) -> str:
        """A sandbox that ran on the lost node, and that its owner has resumed."""
        sandbox_id = running(parts, user)
        lose(other)
        wish(other, sandbox_id, Desired.RUNNING)
        lose(other)
        return sandbox_id

    def test_resume_on_another_node_keeps_the_id(self, other: Parts, moved: str, other_engine: FakeEngine) -> None:
        found = row(other, Sandbox, moved)
        assert (found.status, found.node_id, found.ready_at) == (Status.STARTING, "node-b", None)
        assert NODE_ID in (found.detail or "")
        assert jobs(other) == [ResumeSandbox(moved, "node-b")]
        deliver(other)
        found = row(other, Sandbox, moved)
        assert (found.status, found.reason) == (Status.RUNNING, None)
        assert_at_rest(found)
        assert list(other_engine.containers) == [container_name(moved)]
        with other.database.reading() as session:
            reasons = [move.reason for move in sandboxes.transitions(session, moved)]
        assert reasons == [None, None, Reason.NODE_LOST, None, None]

    def test_a_late_message_is_not_carried_out_by_the_old_node(
        self, parts: Parts, other: Parts, moved: str, engine: FakeEngine
    ) -> None:
        engine.containers.clear()
        converge(parts, moved)
        assert engine.containers == {}
        assert row(parts, Sandbox, moved).status == Status.STARTING

    def test_resume_waits_for_room_on_another_node(self, parts: Parts, other: Parts, user: Person) -> None:
        sandbox_id = running(parts, user)
        lose(other)
        change(other, Node, "node-b", capacity=0)
        wish(other, sandbox_id, Desired.RUNNING)
        lose(other)
        assert row(other, Sandbox, sandbox_id).node_id == NODE_ID
        change(other, Node, "node-b", capacity=1)
        lose(other)
        assert row(other, Sandbox, sandbox_id).node_id == "node-b"

    def test_node_that_is_back_reaps_before_it_is_ready(
        self, parts: Parts, other: Parts, user: Person, moved: str, engine: FakeEngine
    ) -> None:
        deliver(other)
        kept = container_name(make_sandbox(parts.database, user).id)
        engine.containers[kept] = engine.containers[container_name(moved)]
        engine.volumes[kept] = engine.volumes[container_name(moved)]
        engine.before["remove"] = lambda _name: self.assert_lost(parts)
        beat(parts)
        assert status_of(parts) == NodeStatus.READY
        assert (set(engine.containers), set(engine.volumes)) == ({kept}, {kept})
        assert row(parts, Sandbox, moved).status == Status.RUNNING

    def test_node_is_not_back_before_the_last_move_is_reaped(
        self, parts: Parts, other: Parts, user: Person, engine: FakeEngine
    ) -> None:
        sandbox_id = running(parts, user)
        lose(other)
        wish(other, sandbox_id, Desired.RUNNING)
        # After it has looked for leftovers, and before it writes.
        beating, _ = punctuated(parts, 2, lambda: lose(other))
        beat(beating)
        assert status_of(parts) == NodeStatus.LOST
        assert container_name(sandbox_id) in engine.containers
        beat(parts)
        assert status_of(parts) == NodeStatus.READY
        assert engine.containers == {}

    def test_sandbox_moves_back_when_the_other_node_is_lost(
        self, parts: Parts, other: Parts, moved: str, engine: FakeEngine
    ) -> None:
        deliver(other)
        beat(parts)
        parts.publisher.jobs.clear()  # type: ignore[attr-defined]
        back = replace(parts, settings=parts.settings.model_copy(update={"node_lost_seconds": LIMIT}))
        lose(back)
        wish(back, moved, Desired.RUNNING)
        lose(back)
        assert row(back, Sandbox, moved).node_id == NODE_ID
        deliver(back)
        beat(parts)
        resync(parts)
        assert engine.containers[container_name(moved)].state == ContainerState.RUNNING
        with parts.database.reading() as session:
            assert [left.node_id for left in session.exec(select(SandboxLeftover)).all()] == ["node-b"]

    def assert_lost(self, parts: Parts) -> None:
        assert status_of(parts) == NodeStatus.LOST


def test_sandbox_that_runs_on_a_node_that_is_back_shows_as_running(parts: Parts, other: Parts, user: Person) -> None:
    sandbox_id = running(parts, user)
    lose(other)
    assert row(parts, Sandbox, sandbox_id).status == Status.ERROR
    beat(parts)
    resync(parts)
    deliver(parts)
    found = row(parts, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.RUNNING, None)
