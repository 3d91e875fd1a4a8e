"""An engine that fails a pull, refuses an inspect, or never answers a create."""

import threading

import pytest

from shared.states import Desired, Status
from tests.factories import ApiUser
from tests.fakes.engine import IMAGE, FakeEngine
from tests.waiting import eventually
from tests.worker.sandboxes.reconciler.sandboxes import before_next, history, mark_due, row, running, set_desired, start
from tests.worker.scenarios import deliver
from worker.context import WorkerContext
from worker.loops.resync import resync
from worker.sandboxes.reconciler import reconcile

# More runs than the max attempts.
OFTEN = 12


def try_often(context: WorkerContext, sandbox_id: str) -> None:
    for _ in range(OFTEN):
        assert row(context, sandbox_id).due_at is not None
        reconcile(context, sandbox_id)


def test_pull_that_the_engine_fails_is_retried(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    sandbox_id = start(context, user)
    engine.images.clear()
    engine.pullable, engine.fail = {IMAGE}, {"pull": 1000}
    try_often(context, sandbox_id)
    found = row(context, sandbox_id)
    assert (found.status, found.reason) == (Status.STARTING, "engine_error")
    assert "pull failed" in (found.detail or "")
    engine.fail = {}
    reconcile(context, sandbox_id)
    assert history(context, sandbox_id) == ["STARTING", "RUNNING"]


@pytest.mark.parametrize(
    ("desired", "before", "after"),
    [
        (Desired.RUNNING, Status.STARTING, Status.RUNNING),
        (Desired.PAUSED, Status.RUNNING, Status.PAUSED),
        (Desired.DELETED, Status.RUNNING, Status.DELETED),
    ],
)
def test_inspect_that_the_engine_refuses_is_an_engine_error(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, desired: Desired, before: Status, after: Status
) -> None:
    sandbox_id = start(context, user) if desired == Desired.RUNNING else running(context, user)
    engine.refuse = {"observe": 1000}
    if desired != Desired.RUNNING:
        set_desired(context, sandbox_id, desired)
    try_often(context, sandbox_id)
    found = row(context, sandbox_id)
    assert (found.status, found.reason) == (before, "engine_error")
    assert "observe refused" in (found.detail or "")
    engine.refuse = {}
    reconcile(context, sandbox_id)
    assert row(context, sandbox_id).status == after


def test_cleanup_that_the_engine_refuses_keeps_the_reason(
    context: WorkerContext, user: ApiUser, engine: FakeEngine
) -> None:
    engine.at_boot, engine.refuse = 3, {"remove": 1000}
    sandbox_id = start(context, user)
    for _ in range(OFTEN):
        reconcile(context, sandbox_id)
        mark_due(context, sandbox_id)
    assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (Status.ERROR, "exit_code")
    reconcile(context, sandbox_id)
    engine.refuse = {}
    resync(context)
    deliver(context)
    assert (engine.containers, engine.volumes) == ({}, {})
    assert row(context, sandbox_id).reason == "exit_code"


def test_lost_response_to_a_create_does_not_block_a_delete(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The create ends after the sandbox is deleted: the resync removes the stale container."""
    monkeypatch.setattr("worker.lease_renewer.WATCH_SECONDS", 0.01)
    monkeypatch.setattr("worker.sandboxes.actions.ACT_SECONDS", 0.05)
    sandbox_id, deleted = start(context, user), threading.Event()

    def delete_and_wait() -> None:
        set_desired(context, sandbox_id, Desired.DELETED)
        deleted.wait(10)

    before_next(engine, "create", delete_and_wait)
    reconcile(context, sandbox_id)
    assert row(context, sandbox_id).status == Status.DELETED
    deleted.set()
    eventually(lambda: bool(engine.containers))
    resync(context)
    assert not engine.containers
    assert not engine.volumes


def test_delete_waits_for_a_create_within_its_timeout(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each delete of a sandbox that starts would leave a stale container for the next resync."""
    monkeypatch.setattr("worker.lease_renewer.WATCH_SECONDS", 0.01)
    sandbox_id, never = start(context, user), threading.Event()

    def delete_and_answer_late() -> None:
        set_desired(context, sandbox_id, Desired.DELETED)
        never.wait(0.2)

    before_next(engine, "create", delete_and_answer_late)
    reconcile(context, sandbox_id)
    assert row(context, sandbox_id).status == Status.DELETED
    assert engine.verbs() == ["create", "remove"]
    assert not engine.containers
