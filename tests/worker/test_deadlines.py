"""Deadlines carried out: from a sandbox that nobody uses to none, and the reasons that its owner is given."""

from typing import Any

import pytest
import time_machine
from sqlmodel import select

from shared.clock import after, now
from shared.database import Database
from shared.deadlines import NEVER
from shared.jobs import DeleteSandbox, Job, PauseSandbox, StopSandbox
from shared.models import Node, Sandbox, SandboxSpec, StartTask
from shared.states import Desired, NodeStatus, Reason, Stage, Status
from shared.store import deadlines, sandboxes, specs
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, Person, make_conversation, make_start_task
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.scenes import another, assert_at_rest, change, configure, deliver, row, running, start, wish
from worker.containers import ContainerState
from worker.converge import converge
from worker.deadlines import meet_deadlines
from worker.parts import Parts
from worker.sandbox_container import container_name
from worker.starts import start_conversation
from worker.sweep import sweep

FREEZE, STOP, DELETE = 60, 600, 6000


@pytest.fixture(autouse=True)
def _spec(database: Database, parts: Parts) -> None:
    assert parts.database is database
    chain = {"freeze_after_seconds": FREEZE, "stop_after_seconds": STOP, "delete_after_seconds": DELETE}
    with database.transaction() as session:
        specs.set_deadlines(session, IMAGE, chain)


def swept(parts: Parts) -> list[Job]:
    """What one sweep publishes; it is carried out."""
    assert isinstance(parts.publisher, RecordingPublisher)
    parts.publisher.jobs.clear()
    sweep(parts)
    jobs = list(parts.publisher.jobs)
    deliver(parts)
    return jobs


def history(parts: Parts, sandbox_id: str) -> list[tuple[str, str | None, str | None]]:
    with parts.database.reading() as session:
        moves = sandboxes.transitions(session, sandbox_id)
    return [(move.to_status, move.pause_kind, move.reason) for move in moves]


def in_force(parts: Parts, sandbox_id: str, **own: int | None) -> None:
    with parts.database.transaction() as session:
        sandboxes.set_deadlines(session, session.get_one(Sandbox, sandbox_id), own)


def test_a_life_that_nobody_prolongs(parts: Parts, user: Person, engine: FakeEngine) -> None:
    with time_machine.travel(now(), tick=False) as clock:
        sandbox_id = running(parts, user)
        name = container_name(sandbox_id)
        steps = (
            (FREEZE, PauseSandbox, ContainerState.FROZEN),
            (STOP, StopSandbox, ContainerState.EXITED),
            (DELETE, DeleteSandbox, None),
        )
        for seconds, job, state in steps:
            clock.shift(seconds - 1)
            assert swept(parts) == []
            clock.shift(1)
            assert swept(parts) == [job(sandbox_id, NODE_ID)]
            assert (engine.containers[name].state if name in engine.containers else None) == state
            assert swept(parts) == []
            assert_at_rest(row(parts, Sandbox, sandbox_id))
    assert history(parts, sandbox_id) == [
        ("STARTING", None, None),
        ("RUNNING", None, None),
        ("PAUSED", "FROZEN", Reason.IDLE_FROZEN),
        ("PAUSED", "STOPPED", Reason.IDLE_STOPPED),
        ("DELETING", None, Reason.IDLE_DELETED),
        ("DELETED", None, Reason.IDLE_DELETED),
    ]
    assert engine.volumes == {}


def test_deadline_of_a_resumed_sandbox_begins_anew(parts: Parts, user: Person) -> None:
    with time_machine.travel(now(), tick=False) as clock:
        sandbox_id = running(parts, user)
        for seconds in (FREEZE, STOP):
            clock.shift(seconds)
            swept(parts)
            wish(parts, sandbox_id, Desired.RUNNING)
            converge(parts, sandbox_id)
            found = row(parts, Sandbox, sandbox_id)
            assert (found.status, found.reason, found.deadline_at) == (Status.RUNNING, None, after(FREEZE))
            clock.shift(FREEZE)
            assert swept(parts) == [PauseSandbox(sandbox_id, NODE_ID)]


def test_expiry_says_so(parts: Parts, user: Person, engine: FakeEngine) -> None:
    with time_machine.travel(now(), tick=False) as clock:
        sandbox_id = running(parts, user)
        in_force(parts, sandbox_id, max_age_seconds=30)
        clock.shift(30)
        assert swept(parts) == [DeleteSandbox(sandbox_id, NODE_ID)]
    assert history(parts, sandbox_id)[-1] == ("DELETED", None, Reason.EXPIRED)
    assert engine.containers == {}


def test_sandbox_that_failed_is_deleted_in_time(parts: Parts, user: Person, engine: FakeEngine) -> None:
    with time_machine.travel(now(), tick=False) as clock:
        sandbox_id = running(parts, user)
        engine.containers[container_name(sandbox_id)].state = ContainerState.EXITED
        change(parts, Sandbox, sandbox_id, due_at=now())
        clock.shift(10)
        converge(parts, sandbox_id)
        assert row(parts, Sandbox, sandbox_id).status == Status.ERROR
        clock.shift(DELETE - 1)
        assert swept(parts) == []
        clock.shift(1)
        assert swept(parts) == [DeleteSandbox(sandbox_id, NODE_ID)]
    assert (engine.containers, engine.volumes) == ({}, {})


def test_sandbox_without_a_node_expires_too(parts: Parts, user: Person, engine: FakeEngine) -> None:
    change(parts, Node, NODE_ID, capacity=0)
    with time_machine.travel(now(), tick=False) as clock:
        sandbox_id = start(parts, user)
        in_force(parts, sandbox_id, max_age_seconds=30)
        clock.shift(30)
        swept(parts)
        swept(parts)
        assert row(parts, Sandbox, sandbox_id).status == Status.DELETED
    assert engine.verbs() == []


class TestUse:
    def test_sandbox_whose_agent_works_is_not_frozen(self, parts: Parts, user: Person) -> None:
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(parts, user)
            talk = make_conversation(parts.database, user, row(parts, Sandbox, sandbox_id), execution_status="running")
            for _ in range(3):
                clock.shift(FREEZE)
                assert swept(parts) == []
                assert row(parts, Sandbox, sandbox_id).last_active_at == now()
            change(parts, type(talk), talk.id, execution_status="finished")
            clock.shift(FREEZE)
            assert swept(parts) == [PauseSandbox(sandbox_id, NODE_ID)]

    def test_a_start_that_ends_is_a_use(self, parts: Parts, user: Person) -> None:
        """From its end on there is as much time as ever."""
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(parts, user)
            task = make_start_task(
                parts.database, user, row(parts, Sandbox, sandbox_id), stage=Stage.WORKING, due_at=now()
            )
            configure(parts, user)
            clock.shift(FREEZE - 1)
            start_conversation(parts, task.id)
            assert row(parts, StartTask, task.id).stage == Stage.READY
            assert row(parts, Sandbox, sandbox_id).deadline_at == after(FREEZE)


class TestLostNode:
    def test_nothing_is_wished_but_deletes(self, parts: Parts, user: Person) -> None:
        with time_machine.travel(now(), tick=False) as clock:
            idle, doomed = running(parts, user), running(parts, user)
            in_force(parts, doomed, max_age_seconds=FREEZE)
            change(parts, Node, NODE_ID, status=NodeStatus.LOST)
            clock.shift(FREEZE)
            assert isinstance(parts.publisher, RecordingPublisher)
            sweep(parts)
            assert parts.publisher.jobs == [DeleteSandbox(doomed, NODE_ID)]
            assert row(parts, Sandbox, idle).generation == 1
            assert row(parts, Sandbox, doomed).desired == Desired.DELETED
            change(parts, Node, NODE_ID, status=NodeStatus.READY)
            clock.shift(parts.shared.republish_seconds + 1)  # its message was lost
            assert PauseSandbox(idle, NODE_ID) in swept(parts)
            assert row(parts, Sandbox, doomed).status == Status.DELETED


class TestRaces:
    def test_a_resume_overtakes_a_freeze_under_way(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(parts, user)
            clock.shift(FREEZE)

            def overtake(_name: str) -> None:
                engine.before.clear()
                wish(parts, sandbox_id, Desired.RUNNING)

            engine.before["freeze"] = overtake
            swept(parts)
            found = row(parts, Sandbox, sandbox_id)
            assert (found.status, found.reason, found.deadline_at) == (Status.RUNNING, None, after(FREEZE))

    def test_a_pause_by_the_owner_takes_its_place(self, parts: Parts, user: Person) -> None:
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(parts, user)
            clock.shift(FREEZE)
            sweep(parts)
            wish(parts, sandbox_id, Desired.PAUSED)
            deliver(parts)
            assert history(parts, sandbox_id)[-1] == ("PAUSED", "FROZEN", None)

    def test_a_pause_by_the_owner_while_it_is_frozen(self, parts: Parts, user: Person, engine: FakeEngine) -> None:
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(parts, user)
            clock.shift(FREEZE)
            engine.before["freeze"] = lambda _name: wish(parts, sandbox_id, Desired.PAUSED)
            swept(parts)
            assert history(parts, sandbox_id)[-1] == ("PAUSED", "FROZEN", None)

    def test_between_the_look_and_the_wish(self, parts: Parts, user: Person, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whoever comes before the sweep's own write is not overruled."""
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(parts, user)
            clock.shift(FREEZE)
            look = deadlines.overdue

            def look_and_wait(session: Any, node_id: str) -> Any:
                seen = look(session, node_id)
                in_force(parts, sandbox_id, freeze_after_seconds=NEVER)
                return seen

            monkeypatch.setattr(deadlines, "overdue", look_and_wait)
            meet_deadlines(parts)
            assert row(parts, Sandbox, sandbox_id).generation == 1

    def test_two_workers_of_a_node(self, parts: Parts, user: Person) -> None:
        with time_machine.travel(now(), tick=False) as clock:
            sandbox_id = running(parts, user)
            clock.shift(FREEZE)
            meet_deadlines(parts)
            meet_deadlines(another(parts))
            assert row(parts, Sandbox, sandbox_id).generation == 2


def test_the_columns_follow_through_every_life(parts: Parts, user: Person) -> None:
    """What the sweep reads is what the row says, whichever door the row was written through."""
    ids = [running(parts, user) for _ in range(4)]
    for sandbox_id, desired in zip(ids, Desired, strict=True):
        wish(parts, sandbox_id, desired)
        converge(parts, sandbox_id)
    for sandbox_id in ids:
        before = row(parts, Sandbox, sandbox_id).model_dump()
        with parts.database.transaction() as session:
            deadlines.refresh(session, sandbox_id)
        assert row(parts, Sandbox, sandbox_id).model_dump() == before
    with parts.database.reading() as session:
        assert session.exec(select(SandboxSpec.freeze_after_seconds)).one() == FREEZE
