"""Other nodes: when one is lost, who is told, what is moved, and that nothing runs twice when it is back."""

from contextlib import nullcontext
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from sqlmodel import select

from shared.clock import after, now
from shared.errors import Conflict
from shared.jobs import ResumeSandbox, StartConversation
from shared.models import Node, Sandbox, SandboxLeftover, StartTask
from shared.states import MOVES, Desired, NodeStatus, Reason, Stage, Status
from shared.store import nodes, sandboxes
from shared.store.evacuation import Lost
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, Person, make_sandbox, make_start_task
from tests.fakes.engine import FakeEngine
from tests.worker.scenes import assert_at_rest, change, deliver, punctuated, row, running, wish
from worker.containers import ContainerState
from worker.converge import converge
from worker.lost_nodes import NodeWatch, evacuate
from worker.node import beat
from worker.parts import Parts
from worker.resync import resync
from worker.sandbox_container import container_name
from worker.sweep import sweep

LIMIT = 20.0


class Clock:
    """Seconds that a test counts."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def listen(watch: NodeWatch, clock: Clock, seconds: float = LIMIT, step: float = 1.0) -> None:
    """Look every second for so long."""
    watch.look()
    for _ in range(round(seconds / step)):
        clock.seconds += step
        watch.look()


def lose(other: Parts) -> None:
    """Have `node-a` found lost, and evacuated."""
    clock = Clock()
    listen(NodeWatch(other, clock), clock)


def jobs(parts: Parts) -> list[Any]:
    assert isinstance(parts.publisher, RecordingPublisher)
    return parts.publisher.jobs


def status_of(parts: Parts) -> str:
    return row(parts, Node, NODE_ID).status


class TestWatch:
    def test_silent_node_is_lost_after_the_limit_and_not_before(self, other: Parts, clock: Clock) -> None:
        watch = NodeWatch(other, clock)
        listen(watch, clock, LIMIT - 1)
        assert status_of(other) == NodeStatus.READY
        clock.seconds += 1
        watch.look()
        found = row(other, Node, NODE_ID)
        assert (found.status, "last heard of" in (found.detail or "")) == (NodeStatus.LOST, True)
        assert row(other, Node, "node-b").status == NodeStatus.READY

    def test_every_heartbeat_begins_anew(self, parts: Parts, other: Parts, clock: Clock) -> None:
        watch = NodeWatch(other, clock)
        for _ in range(3):
            listen(watch, clock, LIMIT - 1)
            beat(parts)
        assert status_of(other) == NodeStatus.READY

    def test_own_pause_is_not_the_silence_of_others(self, other: Parts, clock: Clock) -> None:
        change(other, Node, NODE_ID, heartbeat_at=now() - timedelta(hours=1))
        watch = NodeWatch(other, clock)
        watch.look()
        clock.seconds += 10 * LIMIT
        watch.look()
        assert status_of(other) == NodeStatus.READY

    def test_cordon_outlives_the_loss(self, parts: Parts, other: Parts) -> None:
        change(other, Node, NODE_ID, status=NodeStatus.CORDONED)
        lose(other)
        found = row(other, Node, NODE_ID)
        assert (found.status, bool(found.detail)) == (NodeStatus.CORDONED, True)
        beat(parts)
        assert row(other, Node, NODE_ID).detail is None

    def test_engine_that_is_down_stops_the_heartbeat(self, parts: Parts, engine: FakeEngine) -> None:
        before = row(parts, Node, NODE_ID).heartbeat_at
        engine.down = True
        beat(parts)
        assert row(parts, Node, NODE_ID).heartbeat_at == before
        engine.down = False
        beat(parts)
        assert row(parts, Node, NODE_ID).heartbeat_at > before


class TestTelling:
    @pytest.mark.parametrize(
        ("status", "columns", "told"),
        [
            (Status.RUNNING, {}, True),
            (Status.STARTING, {}, True),
            (Status.RUNNING, {"desired": Desired.PAUSED, "generation": 2, "due_at": now()}, True),
            (Status.RUNNING, {"lease_owner": "worker-1", "lease_until": -1}, True),
            (Status.RUNNING, {"lease_owner": "worker-1", "lease_until": 10}, False),
            (Status.PAUSED, {}, False),
            (Status.PAUSED, {"desired": Desired.RUNNING, "generation": 2, "due_at": now()}, True),
            (Status.ERROR, {}, False),
            (Status.ERROR, {"generation": 2, "due_at": now()}, True),
            (Status.RUNNING, {"desired": Desired.DELETED, "generation": 2, "due_at": now()}, False),
            (Status.DELETING, {"due_at": now()}, False),
            (Status.DELETED, {}, False),
        ],
    )
    def test_of_what_can_not_be_true_any_more(
        self, other: Parts, user: Person, status: Status, columns: dict[str, Any], told: bool
    ) -> None:
        lease = {name: after(seconds) for name, seconds in columns.items() if name == "lease_until"}
        sandbox = make_sandbox(other.database, user, status=status, **(columns | lease))
        lose(other)
        found = row(other, Sandbox, sandbox.id)
        assert ((found.status, found.reason) == (Status.ERROR, Reason.NODE_LOST)) == told
        assert found.node_id == NODE_ID
        if told:
            assert NODE_ID in (found.detail or "")
            assert (found.lease_owner, found.lease_until, found.told_generation) == (None, None, found.generation)
            # What is not carried out yet is there for the node when it is back.
            assert (found.due_at is not None) == (found.generation != found.observed_generation)
            assert found.observed_generation == sandbox.observed_generation
        else:
            assert found.status == status

    def test_it_is_told_once(self, other: Parts, user: Person) -> None:
        sandbox = make_sandbox(other.database, user, desired=Desired.PAUSED, generation=2, due_at=now())
        lose(other)
        told = row(other, Sandbox, sandbox.id)
        lose(other)
        assert row(other, Sandbox, sandbox.id).fence == told.fence

    @pytest.mark.parametrize(
        ("first", "then", "status"),
        [
            (Desired.RUNNING, Desired.PAUSED, Status.PAUSED),
            (Desired.RUNNING, Desired.STOPPED, Status.PAUSED),
            (Desired.PAUSED, Desired.RUNNING, Status.RUNNING),
        ],
    )
    def test_wish_from_before_the_loss_is_carried_out_when_the_node_is_back(
        self, parts: Parts, other: Parts, user: Person, first: Desired, then: Desired, status: Status
    ) -> None:
        sandbox_id = running(parts, user)
        wish(parts, sandbox_id, first)
        converge(parts, sandbox_id)
        wish(parts, sandbox_id, then)
        lose(other)
        assert row(other, Sandbox, sandbox_id).reason == Reason.NODE_LOST
        beat(parts)
        sweep(parts)
        deliver(parts)
        found = row(parts, Sandbox, sandbox_id)
        assert (found.status, found.reason, found.observed_generation) == (status, None, found.generation)
        assert_at_rest(found)

    def test_start_task_is_told_too(self, other: Parts, user: Person) -> None:
        sandbox = make_sandbox(other.database, user, status=Status.STARTING)
        task = make_start_task(other.database, user, sandbox, stage=Stage.WAITING_FOR_SANDBOX, due_at=None)
        lose(other)
        assert StartConversation(task.id, "node-b") in jobs(other)
        deliver(other)
        found = row(other, StartTask, task.id)
        assert (found.stage, found.reason) == (Stage.ERROR, Reason.SANDBOX_FAILED)

    def test_start_task_whose_message_was_lost_is_handed_out_again(self, other: Parts, user: Person) -> None:
        sandbox = make_sandbox(other.database, user, status=Status.ERROR)
        task = make_start_task(other.database, user, sandbox)
        lose(other)
        assert StartConversation(task.id, "node-b") in jobs(other)

    def test_sandbox_of_a_node_that_is_back_is_left_alone(self, parts: Parts, other: Parts, user: Person) -> None:
        lose(other)
        beat(parts)
        sandbox = make_sandbox(other.database, user)
        lost = Lost(NODE_ID, now() - timedelta(minutes=1))  # as another worker saw it before the beat
        evacuate(other, lost)
        assert row(other, Sandbox, sandbox.id).status == Status.RUNNING


class TestMoving:
    @pytest.fixture
    def moved(self, parts: Parts, other: Parts, user: Person) -> str:
        """A sandbox that ran on the lost node, and that its owner has resumed."""
        sandbox_id = running(parts, user)
        lose(other)
        wish(other, sandbox_id, Desired.RUNNING)
        lose(other)
        return sandbox_id

    def test_makes_it_anew_under_the_same_id(self, other: Parts, moved: str, other_engine: FakeEngine) -> None:
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

    def test_waits_for_room(self, parts: Parts, other: Parts, user: Person) -> None:
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

    def test_and_back_again(self, parts: Parts, other: Parts, moved: str, engine: FakeEngine) -> None:
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


class TestForgotten:
    """The operator says that the node never comes back."""

    @pytest.fixture(autouse=True)
    def _first_choice(self, other: Parts) -> None:
        change(other, Node, NODE_ID, capacity=200)

    @pytest.mark.parametrize("desired", sorted(set(Desired) - {Desired.DELETED}))
    @pytest.mark.parametrize("status", sorted(set(Status) - {Status.DELETING, Status.DELETED}))
    def test_everything_is_told(self, other: Parts, user: Person, status: Status, desired: Desired) -> None:
        sandbox = make_sandbox(other.database, user, status=status, desired=desired)
        task = make_start_task(other.database, user, sandbox, stage=Stage.WAITING_FOR_SANDBOX, due_at=None)
        forget(other)
        found = row(other, Sandbox, sandbox.id)
        assert (found.status, found.reason, found.node_id) == (Status.ERROR, Reason.NODE_LOST, NODE_ID)
        assert "files are lost" in (found.detail or "")
        assert_at_rest(found)
        deliver(other)
        assert row(other, StartTask, task.id).stage == Stage.ERROR

    @pytest.mark.parametrize("status", sorted(set(Status) - {Status.DELETED}))
    def test_what_was_wished_away_is_a_tombstone(self, other: Parts, user: Person, status: Status) -> None:
        columns: dict[str, Any] = {"desired": Desired.DELETED, "generation": 2, "due_at": now()}
        sandbox = make_sandbox(other.database, user, status=status, **columns)
        forget(other)
        found = row(other, Sandbox, sandbox.id)
        assert (found.status, found.node_id, found.observed_generation) == (Status.DELETED, None, 2)
        assert_at_rest(found)
        with other.database.reading() as session:
            path = [status, *(move.to_status for move in sandboxes.transitions(session, sandbox.id))]
        assert all(after_ in MOVES[Status(before)] for before, after_ in pairwise(path))

    def test_what_somebody_holds_waits(self, other: Parts, user: Person) -> None:
        columns: dict[str, Any] = {"desired": Desired.DELETED, "lease_owner": "w", "lease_until": after(10)}
        sandbox = make_sandbox(other.database, user, **columns)
        forget(other)
        assert row(other, Sandbox, sandbox.id).status == Status.RUNNING
        change(other, Sandbox, sandbox.id, lease_until=after(-1))
        lose(other)
        assert row(other, Sandbox, sandbox.id).status == Status.DELETED

    def test_resume_makes_it_anew_and_delete_ends_it(self, parts: Parts, other: Parts, user: Person) -> None:
        resumed, deleted = running(parts, user), running(parts, user)
        forget(other)
        wish(other, resumed, Desired.RUNNING)
        wish(other, deleted, Desired.DELETED)
        lose(other)
        deliver(other)
        found = row(other, Sandbox, resumed)
        assert (found.status, found.node_id) == (Status.RUNNING, "node-b")
        assert row(other, Sandbox, deleted).status == Status.DELETED

    def test_node_that_is_back_is_rid_of_what_is_no_longer_its_own(
        self, parts: Parts, other: Parts, user: Person, engine: FakeEngine
    ) -> None:
        resumed, deleted, left = (running(parts, user) for _ in range(3))
        wish(other, deleted, Desired.DELETED)
        forget(other)
        wish(other, resumed, Desired.RUNNING)
        lose(other)
        deliver(other)
        seen: list[str] = []
        engine.before["remove"] = lambda _name: seen.append(status_of(parts))
        beat(parts)
        assert seen == [NodeStatus.LOST] * 2
        assert set(engine.containers) == set(engine.volumes) == {container_name(left)}
        found = row(parts, Node, NODE_ID)
        assert (found.status, found.forgotten_at) == (NodeStatus.READY, None)
        resync(parts)
        deliver(parts)
        assert row(parts, Sandbox, left).status == Status.RUNNING
        assert row(parts, Sandbox, deleted).status == Status.DELETED

    def test_node_that_beats_before_the_burial_keeps_its_sandboxes(
        self, parts: Parts, other: Parts, user: Person
    ) -> None:
        sandbox_id = running(parts, user)
        wish(other, sandbox_id, Desired.DELETED)
        lose(other)
        change(other, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=1))
        give_up(other)
        lost = Lost(NODE_ID, row(other, Node, NODE_ID).heartbeat_at)
        beat(parts)
        evacuate(other, lost)
        assert row(other, Sandbox, sandbox_id).status == Status.RUNNING
        converge(parts, sandbox_id)
        assert row(other, Sandbox, sandbox_id).status == Status.DELETED

    def test_empty_one_is_watched_no_more(self, other: Parts) -> None:
        forget(other)
        with other.database.reading() as session:
            assert set(nodes.heartbeats(session)) == {"node-b"}

    @pytest.mark.parametrize("silent", [True, False])
    @pytest.mark.parametrize("told", [True, False])
    @pytest.mark.parametrize("status", sorted(NodeStatus))
    def test_only_a_lost_one_can_be(self, other: Parts, silent: bool, told: bool, status: NodeStatus) -> None:
        at = now() - timedelta(minutes=1 if silent else 0)
        change(other, Node, NODE_ID, status=status, detail="away" if told else None, heartbeat_at=at)
        with nullcontext() if silent and told else pytest.raises(Conflict, match="not lost"):
            give_up(other)
        assert (row(other, Node, NODE_ID).forgotten_at is not None) == (silent and told)


def forget(other: Parts) -> None:
    """Have `node-a` lost, forgotten and seen to."""
    lose(other)
    change(other, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=1))
    give_up(other)
    lose(other)


def give_up(other: Parts) -> None:
    with other.database.transaction() as session:
        nodes.forget(session, NODE_ID)


def test_what_runs_on_a_node_that_is_back_runs_again(parts: Parts, other: Parts, user: Person) -> None:
    sandbox_id = running(parts, user)
    lose(other)
    assert row(parts, Sandbox, sandbox_id).status == Status.ERROR
    beat(parts)
    resync(parts)
    deliver(parts)
    found = row(parts, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.RUNNING, None)
