"""A worker whose machine's clock is wrong loses nothing, expires nothing, takes no work, and says so."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import time_machine
from sqlmodel import select

from shared.clock import after, now
from shared.database_clock import follow_database
from shared.jobs import CheckSandbox
from shared.models import ChangeEntry, IdempotencyKey, Node, Sandbox, SandboxSpec
from shared.states import Desired, NodeStatus, Status
from shared.store import sandboxes
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, Person, make_sandbox
from tests.fakes.engine import IMAGE, FakeEngine
from tests.rows import all_rows
from tests.worker.scenes import another, change, row, running, start
from worker.__main__ import await_right_clock, make_routines
from worker.converge import converge
from worker.health import open_watch
from worker.node import beat
from worker.parts import Parts
from worker.routines import unless_clock_is_wrong
from worker.sweep import sweep

CLOSE = timedelta(seconds=30)
HOUR = 3600

pytestmark = pytest.mark.parametrize("seconds", [-24 * HOUR, -HOUR, -90, 90, HOUR, 24 * HOUR])


@pytest.fixture
def kept(parts: Parts, user: Person) -> Sandbox:
    """What a clock that is a day ahead would forget or expire: a kept answer, change entries, a sandbox of an age."""
    change(parts, SandboxSpec, IMAGE, max_age_seconds=12 * HOUR)
    kept: dict[str, Any] = {"owner_id": user.id, "operation": "POST /x", "fingerprint": "", "status": 200, "answer": {}}
    with parts.database.transaction() as session:
        session.add(IdempotencyKey(key="kept", expires_at=after(23 * HOUR), **kept))
    return row(parts, Sandbox, running(parts, user))


def test_sweep_forgets_and_expires_nothing(parts: Parts, kept: Sandbox, seconds: int) -> None:
    before = all_rows(parts.database)
    with time_machine.travel(after(seconds)):
        follow_database(parts.database)
        sweep(parts)
        sweep(parts)
    assert all_rows(parts.database) == before
    with parts.database.reading() as session:
        assert session.exec(select(IdempotencyKey.key)).all() == ["kept"]
        assert session.exec(select(ChangeEntry.number)).first() is not None
        assert session.get_one(Sandbox, kept.id).desired == Desired.RUNNING


def test_routines_rest_until_the_clock_is_right(parts: Parts, user: Person, seconds: int) -> None:
    sandbox_id = make_sandbox(parts.database, user, due_at=now()).id
    assert isinstance(parts.publisher, RecordingPublisher)
    work = unless_clock_is_wrong(lambda: sweep(parts))
    follow_database(parts.database)
    with time_machine.travel(after(seconds)):
        work()
        assert parts.publisher.jobs == []
    work()
    assert parts.publisher.jobs == [CheckSandbox(sandbox_id, NODE_ID)]


def test_no_routine_touches_store_or_engine(parts: Parts, user: Person, engine: FakeEngine, seconds: int) -> None:
    start(parts, user)
    before = all_rows(parts.database)
    follow_database(parts.database)
    with time_machine.travel(after(seconds)):
        for routine in make_routines(parts, open_watch(parts)):
            routine._function()
    assert all_rows(parts.database) == before
    assert engine.calls == []


def test_jobs_are_left_to_others(parts: Parts, user: Person, engine: FakeEngine, seconds: int) -> None:
    sandbox_id = start(parts, user)
    before = all_rows(parts.database)
    with time_machine.travel(after(seconds)):
        follow_database(parts.database)
        converge(parts, sandbox_id)
    assert all_rows(parts.database) == before
    assert engine.calls == []
    converge(another(parts), sandbox_id)
    assert row(parts, Sandbox, sandbox_id).status == Status.RUNNING


def test_history_goes_forward_whenever_the_clock_is_set(
    parts: Parts, user: Person, engine: FakeEngine, seconds: int
) -> None:
    sandbox_id = start(parts, user)
    follow_database(parts.database)
    traveller = time_machine.travel(after(seconds))

    def set_clock(_name: str) -> None:
        traveller.start()

    engine.before = {"start": set_clock}
    try:
        converge(parts, sandbox_id)
    finally:
        traveller.stop()
    with parts.database.reading() as session:
        moves = sandboxes.transitions(session, sandbox_id)
    times = [move.at for move in moves]
    assert [move.to_status for move in moves] == [Status.STARTING, Status.RUNNING]
    assert times == sorted(times)
    assert times[-1] - times[0] < CLOSE


def test_lone_worker_says_so_in_its_node(parts: Parts, seconds: int) -> None:
    change(parts, Node, NODE_ID, heartbeat_at=now() - timedelta(minutes=1))
    with time_machine.travel(after(seconds)):
        follow_database(parts.database)
        beat(parts)
        found = row(parts, Node, NODE_ID)
        assert found.status == NodeStatus.LOST
        assert "the clock of its worker's machine is" in (found.detail or "")
    beat(parts)
    found = row(parts, Node, NODE_ID)
    assert (found.status, found.detail) == (NodeStatus.READY, None)


def test_node_with_another_worker_stays_in_use(parts: Parts, seconds: int) -> None:
    beat(another(parts))
    before = row(parts, Node, NODE_ID)
    with time_machine.travel(after(seconds)):
        follow_database(parts.database)
        beat(parts)
    assert row(parts, Node, NODE_ID) == before


def test_worker_waits_for_the_right_time_before_it_begins(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    traveller = time_machine.travel(after(seconds))
    waited: list[float] = []

    def set_clock(pause: float) -> None:
        waited.append(pause)
        traveller.stop()

    monkeypatch.setattr("worker.__main__.keep_following", lambda _database: None)
    # Other threads sleep, too: theirs is another one.
    monkeypatch.setattr("worker.__main__.time", SimpleNamespace(sleep=set_clock))
    traveller.start()
    await_right_clock(parts)
    assert waited == [parts.settings.heartbeat_seconds]
