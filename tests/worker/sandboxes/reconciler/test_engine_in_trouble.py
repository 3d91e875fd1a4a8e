"""An engine that fails (5xx) or refuses (4xx) requests while a desired state is not reached."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import pytest
import time_machine

from shared.clock import now
from shared.models import Sandbox
from shared.states import Desired, Reason, Status
from tests.factories import ApiUser
from tests.fakes.engine import FakeEngine
from tests.waiting import eventually
from tests.worker.sandboxes.reconciler.sandboxes import (
    assert_reconciled,
    before_next,
    history,
    mark_due,
    row,
    running,
    set_desired,
    start,
)
from tests.worker.scenarios import change
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.resync import resync
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

# More runs than the max attempts.
OFTEN = 12
# Desired states, each with the calls that fail, and with the sandbox's status afterwards.
STATES = [
    (Desired.PAUSED, ["pause"], Status.PAUSED),
    (Desired.STOPPED, ["unpause", "stop"], Status.PAUSED),
    (Desired.DELETED, ["remove"], Status.DELETED),
]
READS = ["observe", "list_containers", "list_volumes", "list_unlabelled_volumes"]


def fail(engine: FakeEngine, verbs: Sequence[str]) -> None:
    engine.fail = dict.fromkeys(verbs, 1000)


def try_often(context: WorkerContext, sandbox_id: str, runs: int = OFTEN) -> None:
    """Reconcile the row `OFTEN` times, with a resync after each run."""
    for _ in range(runs):
        assert row(context, sandbox_id).due_at is not None
        reconcile(context, sandbox_id)
        resync_if_possible(context)


def resync_if_possible(context: WorkerContext) -> None:
    assert isinstance(context.engine, FakeEngine)
    if "list_containers" not in context.engine.fail:
        resync(context)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize(("desired", "verbs", "status"), STATES)
def test_desired_state_is_kept_until_it_is_reached(
    context: WorkerContext,
    user: ApiUser,
    engine: FakeEngine,
    desired: Desired,
    verbs: list[str],
    status: Status,
    reads: bool,
) -> None:
    sandbox_id = running(context, user)
    fail(engine, READS if reads else verbs)
    set_desired(context, sandbox_id, desired)
    try_often(context, sandbox_id)
    found = row(context, sandbox_id)
    assert found.desired == desired
    assert found.reason == "engine_error"
    assert "status 500" in (found.detail or "")
    engine.fail = {}
    reconcile(context, sandbox_id)
    found = row(context, sandbox_id)
    assert (found.status, found.reason, found.detail) == (status, None, None)
    assert not {"ERROR", "STARTING"} & set(history(context, sandbox_id)[2:])
    assert_reconciled(context, sandbox_id)


@pytest.mark.parametrize("verb", ["unpause", "observe"])
def test_resume_is_kept_until_it_is_reached(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, verb: str
) -> None:
    sandbox_id = running(context, user)
    set_desired(context, sandbox_id, Desired.PAUSED)
    reconcile(context, sandbox_id)
    fail(engine, [verb])
    set_desired(context, sandbox_id, Desired.RUNNING)
    try_often(context, sandbox_id)
    assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (Status.PAUSED, "engine_error")
    engine.fail = {}
    reconcile(context, sandbox_id)
    assert history(context, sandbox_id) == ["STARTING", "RUNNING", "PAUSED", "RUNNING"]


@pytest.mark.parametrize("verb", ["create", "put_file", "start", "observe"])
def test_start_waits_for_the_engine(context: WorkerContext, user: ApiUser, engine: FakeEngine, verb: str) -> None:
    sandbox_id = start(context, user)
    fail(engine, [verb])
    try_often(context, sandbox_id)
    assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (Status.STARTING, "engine_error")
    engine.fail = {}
    reconcile(context, sandbox_id)
    assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (Status.RUNNING, None)
    assert history(context, sandbox_id) == ["STARTING", "RUNNING"]


def test_newer_desired_state_replaces_one_that_waits(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    sandbox_id = running(context, user)
    fail(engine, ["pause"])
    set_desired(context, sandbox_id, Desired.PAUSED)
    try_often(context, sandbox_id)
    set_desired(context, sandbox_id, Desired.RUNNING)
    reconcile(context, sandbox_id)
    assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (Status.RUNNING, None)
    assert history(context, sandbox_id) == ["STARTING", "RUNNING"]


@pytest.mark.parametrize("state", [ContainerState.PAUSED, ContainerState.RUNNING])
def test_drift_is_not_taken_for_a_failure(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, state: ContainerState
) -> None:
    sandbox_id = running(context, user)
    engine.containers[container_name(sandbox_id)].state = state
    fail(engine, READS)
    mark_due(context, sandbox_id)
    try_often(context, sandbox_id)
    assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (Status.RUNNING, None)


def test_failed_attempts_before_a_successful_check_do_not_count_later(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    sandbox_id = running(context, user)
    fail(engine, READS)
    mark_due(context, sandbox_id)
    try_often(context, sandbox_id)
    assert row(context, sandbox_id).attempt > 0
    engine.fail = {}
    reconcile(context, sandbox_id)
    assert (row(context, sandbox_id).status, row(context, sandbox_id).attempt) == (Status.RUNNING, 0)


def test_lost_node_stays_the_reason(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    """The reason lets another node fail the sandbox over."""
    sandbox_id = running(context, user)
    change(context, Sandbox, sandbox_id, status=Status.ERROR, reason=Reason.NODE_LOST)
    engine.down = True
    set_desired(context, sandbox_id, Desired.RUNNING)
    reconcile(context, sandbox_id)
    assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (Status.ERROR, "node_lost")


def allowing(context: WorkerContext, attempts: int) -> WorkerContext:
    return replace(context, settings=context.settings.model_copy(update={"max_attempts": attempts}))


@pytest.mark.parametrize("max_attempts", [1, 2, 5, 10])
def test_retries_have_an_exponential_backoff(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, max_attempts: int
) -> None:
    context = allowing(context, max_attempts)
    sandbox_id = running(context, user)
    fail(engine, ["pause"])
    set_desired(context, sandbox_id, Desired.PAUSED)
    pauses = []
    with time_machine.travel(now(), tick=False):
        for _ in range(6):
            reconcile(context, sandbox_id)
            due_at = row(context, sandbox_id).due_at
            assert due_at is not None
            pauses.append((due_at - now()) / timedelta(seconds=1))
    assert pauses == [0.5, 1, 2, 4, 4, 4]


@pytest.mark.parametrize(("desired", "verb"), [(Desired.PAUSED, "pause"), (Desired.STOPPED, "stop")])
def test_pause_that_the_engine_refuses_is_retried(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, desired: Desired, verb: str
) -> None:
    sandbox_id = running(context, user)
    engine.refuse = {verb: 1000}
    set_desired(context, sandbox_id, desired)
    try_often(context, sandbox_id)
    found = row(context, sandbox_id)
    assert (found.status, found.reason) == (Status.RUNNING, "engine_error")
    assert f"{verb} refused" in (found.detail or "")
    engine.refuse = {}
    reconcile(context, sandbox_id)
    assert history(context, sandbox_id) == ["STARTING", "RUNNING", "PAUSED"]


@pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
@pytest.mark.parametrize(("state", "verb"), [(None, "create"), (ContainerState.DEAD, "remove_container")])
def test_pause_that_needs_a_new_container_never_ends_in_error(
    context: WorkerContext,
    user: ApiUser,
    engine: FakeEngine,
    desired: Desired,
    state: ContainerState | None,
    verb: str,
) -> None:
    sandbox_id = running(context, user)
    if state:
        engine.containers[container_name(sandbox_id)].state = state
    else:
        del engine.containers[container_name(sandbox_id)]
    engine.refuse = {verb: 1000}
    set_desired(context, sandbox_id, desired)
    try_often(context, sandbox_id)
    assert row(context, sandbox_id).reason == "engine_error"
    assert "ERROR" not in history(context, sandbox_id)
    engine.refuse = {}
    reconcile(context, sandbox_id)
    assert (row(context, sandbox_id).status, row(context, sandbox_id).pause_kind) == (Status.PAUSED, "STOPPED")


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("runs", [1, 2, OFTEN])
@pytest.mark.parametrize("max_attempts", [1, 2, 4, 5])
def test_engine_that_refuses_after_an_outage_gets_a_retry(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, max_attempts: int, runs: int, lost: bool
) -> None:
    context = allowing(context, max_attempts)
    sandbox_id = start(context, user)
    fail(engine, ["create"])
    try_often(context, sandbox_id, runs)
    if lost:  # another node's worker has marked it
        change(context, Sandbox, sandbox_id, status=Status.ERROR, reason=Reason.NODE_LOST, detail="the node is lost")
    engine.fail, engine.refuse = {}, {"create": 1}
    reconcile(context, sandbox_id)
    reconcile(context, sandbox_id)
    assert row(context, sandbox_id).status == Status.RUNNING


def test_alternating_refusals_and_failures_of_the_engine_end_a_start(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    context = allowing(context, 2)
    sandbox_id = start(context, user)
    for _ in range(OFTEN):
        engine.fail, engine.refuse = {"create": 1}, {}
        reconcile(context, sandbox_id)
        engine.fail, engine.refuse = {}, {"create": 1}
        reconcile(context, sandbox_id)
    assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (Status.ERROR, "create_failed")


def test_bug_in_this_service_does_not_end_a_pause(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    sandbox_id = running(context, user)

    def fail_by_a_defect(_name: str) -> None:
        raise KeyError("a defect")

    engine.before["pause"] = fail_by_a_defect
    set_desired(context, sandbox_id, Desired.PAUSED)
    try_often(context, sandbox_id)
    assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (Status.RUNNING, "internal_error")
    engine.before.clear()
    reconcile(context, sandbox_id)
    assert history(context, sandbox_id) == ["STARTING", "RUNNING", "PAUSED"]


def test_desired_state_that_changes_during_a_pull_ends_the_wait(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.lease_renewer.WATCH_SECONDS", 0.01)
    sandbox_id = start(context, user)
    engine.images.clear()

    def delete_and_wait() -> None:
        set_desired(context, sandbox_id, Desired.DELETED)
        eventually(lambda: row(context, sandbox_id).status == Status.DELETED)

    before_next(engine, "pull", delete_and_wait)
    reconcile(context, sandbox_id)
    assert row(context, sandbox_id).status == Status.DELETED
