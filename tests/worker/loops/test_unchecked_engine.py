"""A worker that starts while its engine does not respond does not know whether the engine is its node's."""

from collections.abc import Iterator
from dataclasses import replace
from threading import Event

import pytest

from shared.clock import after, now
from shared.errors import Conflict
from shared.models import Node, Sandbox
from shared.states import Desired, NodeStatus, Status
from tests.factories import NODE_ID, ApiUser, make_user
from tests.fakes.engine import FakeEngine
from tests.worker.loops.failover.nodes import status_of
from tests.worker.scenarios import another, assert_at_rest, change, deliver, row, running, set_desired
from worker.context import WorkerContext
from worker.loops.heartbeat import send_heartbeat
from worker.loops.recheck import recheck
from worker.loops.resync import resync
from worker.loops.sweep import sweep


@pytest.fixture
def wrong_engine() -> FakeEngine:
    """An engine that is not `node-a`'s."""
    engine = FakeEngine()
    engine.down = True
    return engine


@pytest.fixture
def misconfigured(context: WorkerContext, wrong_engine: FakeEngine) -> Iterator[WorkerContext]:
    """A second worker of `node-a`, which has just started with the wrong engine's address."""
    with wrong_engine.agent_servers() as http:
        yield replace(another(context), engine=wrong_engine, http=http, engine_checked=Event())


def test_node_of_a_healthy_worker_stays_ready(context: WorkerContext, misconfigured: WorkerContext) -> None:
    send_heartbeat(context)
    send_heartbeat(misconfigured)
    found = row(context, Node, NODE_ID)
    assert (found.status, found.detail) == (NodeStatus.READY, None)
    change(context, Node, NODE_ID, heartbeat_at=after(-60))
    send_heartbeat(misconfigured)
    assert status_of(context) == NodeStatus.LOST


def test_worker_that_loses_its_engine_reports_it_immediately(context: WorkerContext, engine: FakeEngine) -> None:
    send_heartbeat(context)
    engine.down = True
    send_heartbeat(context)
    assert status_of(context) == NodeStatus.LOST


def test_first_worker_of_a_node_reports_that_its_engine_is_down(misconfigured: WorkerContext) -> None:
    with misconfigured.database.transaction() as session:
        session.delete(session.get_one(Node, NODE_ID))
    send_heartbeat(misconfigured)
    assert status_of(misconfigured) == NodeStatus.LOST


def test_nothing_acts_on_the_wrong_engine(
    context: WorkerContext, misconfigured: WorkerContext, user: ApiUser, wrong_engine: FakeEngine
) -> None:
    kept, started = running(context, user), running(context, user)
    set_desired(context, started, Desired.PAUSED)
    send_heartbeat(context)
    send_heartbeat(misconfigured)
    wrong_engine.down = False
    resync(misconfigured)
    recheck(misconfigured, kept)
    sweep(misconfigured)
    deliver(misconfigured)
    assert wrong_engine.verbs() == []
    assert row(context, Sandbox, kept).status == row(context, Sandbox, started).status == Status.RUNNING
    with pytest.raises(Conflict):
        send_heartbeat(misconfigured)


def test_worker_continues_once_its_engine_responds(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    sandbox_id = running(context, user)
    set_desired(context, sandbox_id, Desired.PAUSED)
    late = replace(another(context), engine_checked=Event())
    engine.down = True
    send_heartbeat(late)
    engine.down = False
    send_heartbeat(late)
    change(context, Sandbox, sandbox_id, due_at=now())
    sweep(late)
    deliver(late)
    found = row(context, Sandbox, sandbox_id)
    assert found.status == Status.PAUSED
    assert_at_rest(found)


def test_checks_of_a_heartbeat_lock_nothing(misconfigured: WorkerContext) -> None:
    """A check may wait for the engine that does not respond. On SQLite, all writers wait for one lock."""
    with misconfigured.database.transaction() as session:
        session.delete(session.get_one(Node, NODE_ID))
    written: list[ApiUser] = []

    def write() -> None:
        written.append(make_user(misconfigured.database, f"user-{len(written)}"))

    for checks in (misconfigured.node_checks, misconfigured.impairment_checks):
        checks.append(write)
    send_heartbeat(misconfigured)
    assert len(written) == 2
    assert status_of(misconfigured) == NodeStatus.LOST
