"""Status checks after drift: they record the change without a job, unless an action is needed."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import pytest
from sqlalchemy.exc import OperationalError

from shared.clock import after, now
from shared.models import Sandbox
from shared.queue.jobs import CheckSandbox
from shared.states import Desired, Reason, Status
from tests.doubles import ManualExecutor, RecordingPublisher
from tests.factories import NODE_ID, ApiUser
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import assert_at_rest, change, deliver, hooked_context, row, running, set_desired, start
from worker.context import LongRuns, WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.recheck import recheck
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

OUTSIDE = {
    ContainerState.EXITED: (Status.ERROR, Reason.EXIT_CODE),
    ContainerState.DEAD: (Status.ERROR, Reason.EXIT_CODE),
    ContainerState.ABSENT: (Status.ERROR, Reason.CONTAINER_MISSING),
    ContainerState.PAUSED: (Status.PAUSED, Reason.PAUSED_OUTSIDE),
    ContainerState.RUNNING: (Status.RUNNING, None),
}
JOB = [CheckSandbox]


def put(engine: FakeEngine, sandbox_id: str, state: ContainerState) -> None:
    """Change a container from outside."""
    if state == ContainerState.ABSENT:
        del engine.containers[container_name(sandbox_id)]
    else:
        engine.containers[container_name(sandbox_id)].state = state


def checked(context: WorkerContext, sandbox_id: str) -> list[type]:
    """Run a status check, and return the kinds of the jobs that it enqueued."""
    assert isinstance(context.publisher, RecordingPublisher)
    assert isinstance(context.status_checks, ManualExecutor)
    context.publisher.jobs.clear()
    recheck(context, sandbox_id)
    context.status_checks.run()
    assert all(job.subject == sandbox_id and job.node_id == NODE_ID for job in context.publisher.jobs)
    return [type(job) for job in context.publisher.jobs]


@pytest.mark.parametrize("state", OUTSIDE)
def test_change_is_recorded_without_a_job(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, state: ContainerState
) -> None:
    sandbox_id = running(context, user)
    put(engine, sandbox_id, state)
    assert checked(context, sandbox_id) == []
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == OUTSIDE[state]
    assert_at_rest(found)


@pytest.mark.parametrize(("desired", "state"), list(product([Desired.RUNNING, Desired.PAUSED], ContainerState)))
def test_check_leaves_the_container_unchanged(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, desired: Desired, state: ContainerState
) -> None:
    sandbox_id = running(context, user)
    set_desired(context, sandbox_id, desired)
    reconcile(context, sandbox_id)
    put(engine, sandbox_id, state)
    engine.calls.clear()
    checked(context, sandbox_id)
    assert engine.verbs() == []


def test_slow_check_is_left_to_a_job(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    sandbox_id = running(context, user)
    put(engine, sandbox_id, ContainerState.EXITED)
    engine.at_boot = "never"  # its agent server does not respond
    engine.start(container_name(sandbox_id))
    assert checked(context, sandbox_id) == JOB
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.lease_until, found.attempt) == (Status.RUNNING, None, 0)
    assert found.due_at is not None
    deliver(context)
    assert row(context, Sandbox, sandbox_id).reason == Reason.HEALTH_TIMEOUT


@pytest.mark.parametrize("desired", [Desired.RUNNING, Desired.PAUSED])
def test_silent_server_is_left_to_the_health_monitor(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, desired: Desired
) -> None:
    sandbox_id = running(context, user)
    set_desired(context, sandbox_id, desired)
    reconcile(context, sandbox_id)
    put(engine, sandbox_id, ContainerState.RUNNING)
    assert checked(context, sandbox_id) == []
    engine.silent = {container_name(sandbox_id)}
    assert checked(context, sandbox_id) == []
    change(context, Sandbox, sandbox_id, due_at=now(), attempt=3)
    reconcile(context, sandbox_id)  # as after a check that the engine failed
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.attempt) == (Status.RUNNING, 0)
    assert_at_rest(found)


def test_unobserved_desired_state_is_left_to_a_job(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    sandbox_id = start(context, user)
    assert checked(context, sandbox_id) == JOB
    assert engine.calls == []
    deliver(context)
    assert row(context, Sandbox, sandbox_id).status == Status.RUNNING


@pytest.mark.parametrize("is_long", [False, True])
def test_pause_during_a_check_is_enqueued_at_its_end(
    context: WorkerContext,
    publisher: RecordingPublisher,
    user: ApiUser,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    is_long: bool,
) -> None:
    """Its own job found the lease of the check, and was dropped. A long check outlasts its call."""
    sandbox_id = running(context, user)
    has_left = threading.Event()

    def pause(_name: str) -> None:
        assert not is_long or has_left.wait(20)
        engine.requested = lambda _name: None
        set_desired(context, sandbox_id, Desired.PAUSED)

    engine.requested = pause
    monkeypatch.setattr("worker.context.JOB_SECONDS", 0.01 if is_long else 20)
    with ThreadPoolExecutor(1) as threads:
        checked(replace(context, runs=LongRuns(threads)), sandbox_id)
        if is_long:
            publisher.jobs.clear()
            has_left.set()
    assert [type(job) for job in publisher.jobs] == JOB
    deliver(context)
    assert row(context, Sandbox, sandbox_id).status == Status.PAUSED


def test_row_leased_by_another_worker_is_skipped(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    sandbox_id = running(context, user)
    change(context, Sandbox, sandbox_id, lease_owner="worker-2", lease_until=after(10))
    engine.calls.clear()
    checked(context, sandbox_id)
    assert engine.calls == []
    assert row(context, Sandbox, sandbox_id).due_at is not None


@pytest.mark.parametrize("at", range(2, 6))
def test_failed_check_is_retried(context: WorkerContext, user: ApiUser, engine: FakeEngine, at: int) -> None:
    def fail() -> None:
        raise OperationalError("", {}, Exception())

    sandbox_id = running(context, user)
    put(engine, sandbox_id, ContainerState.EXITED)
    working, database = hooked_context(context, at, fail)
    checked(working, sandbox_id)
    assert database.passed > at
    found = row(context, Sandbox, sandbox_id)
    assert found.due_at is not None or found.lease_until is not None


def test_unavailable_engine_is_retried(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    sandbox_id = running(context, user)
    engine.down = True
    checked(context, sandbox_id)
    found = row(context, Sandbox, sandbox_id)
    assert (found.status, found.reason) == (Status.RUNNING, None)
    assert found.due_at is not None


def test_check_does_not_delay_a_row_that_is_due_sooner(context: WorkerContext, user: ApiUser) -> None:
    sandbox_id = start(context, user)
    sooner = row(context, Sandbox, sandbox_id).due_at
    recheck(replace(context), sandbox_id)
    assert row(context, Sandbox, sandbox_id).due_at == sooner


def test_check_that_waits_for_a_thread_is_enqueued_once(context: WorkerContext, user: ApiUser) -> None:
    assert isinstance(context.status_checks, ManualExecutor)
    for sandbox_id in (running(context, user), running(context, user)):
        for _ in range(100):
            recheck(context, sandbox_id)
    assert len(context.status_checks.waiting) == 2
    context.status_checks.run()
    context.status_checks.run()
    recheck(context, sandbox_id)
    assert len(context.status_checks.waiting) == 1


def test_waiting_check_sees_a_change_after_a_job_has_checked_the_row(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    assert isinstance(context.status_checks, ManualExecutor)
    sandbox_id = running(context, user)
    recheck(context, sandbox_id)
    reconcile(context, sandbox_id)
    put(engine, sandbox_id, ContainerState.EXITED)
    recheck(context, sandbox_id)
    context.status_checks.run()
    assert row(context, Sandbox, sandbox_id).reason == Reason.EXIT_CODE
    assert context.status_checks.waiting == []
