"""An engine that fails at a pull, refuses a question, or never answers a create."""

import threading

import pytest

from shared.states import Desired, Status
from tests.factories import Person
from tests.fakes.engine import IMAGE, FakeEngine
from tests.waiting import eventually
from tests.worker.sandboxes.reconciler.sandboxes import history, mark_due, once, row, running, start, wish
from tests.worker.scenes import deliver
from worker.context import WorkerContext
from worker.loops.resync import resync
from worker.sandboxes.reconciler import reconcile

# More often than anything is tried that is given up at some time.
OFTEN = 12


def try_often(context: WorkerContext, sandbox_id: str) -> None:
    for _ in range(OFTEN):
        assert row(context, sandbox_id).due_at is not None
        reconcile(context, sandbox_id)


def test_pull_that_the_engine_fails_at_is_tried_on(context: WorkerContext, user: Person, engine: FakeEngine) -> None:
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
def test_question_that_is_refused_is_no_defect_of_ours(
    context: WorkerContext, user: Person, engine: FakeEngine, desired: Desired, before: Status, after: Status
) -> None:
    sandbox_id = start(context, user) if desired == Desired.RUNNING else running(context, user)
    engine.refuse = {"observe": 1000}
    if desired != Desired.RUNNING:
        wish(context, sandbox_id, desired)
    try_often(context, sandbox_id)
    found = row(context, sandbox_id)
    assert (found.status, found.reason) == (before, "engine_error")
    assert "observe refused" in (found.detail or "")
    engine.refuse = {}
    reconcile(context, sandbox_id)
    assert row(context, sandbox_id).status == after


def test_clearing_up_that_is_refused_leaves_the_reason(
    context: WorkerContext, user: Person, engine: FakeEngine
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


def test_lost_answer_to_a_create_does_not_keep_a_delete(
    context: WorkerContext, user: Person, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after all, once the sandbox is deleted: what it makes is a leftover, which is removed."""
    monkeypatch.setattr("worker.leasing.watched_work.WATCH_SECONDS", 0.01)
    monkeypatch.setattr("worker.sandboxes.actions.ACT_SECONDS", 0.05)
    sandbox_id, deleted = start(context, user), threading.Event()

    def delete_and_wait() -> None:
        wish(context, sandbox_id, Desired.DELETED)
        deleted.wait(10)

    once(engine, "create", delete_and_wait)
    reconcile(context, sandbox_id)
    assert row(context, sandbox_id).status == Status.DELETED
    deleted.set()
    eventually(lambda: bool(engine.containers))
    resync(context)
    assert not engine.containers
    assert not engine.volumes


def test_create_may_answer_within_its_time_before_a_delete_goes_on(
    context: WorkerContext, user: Person, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each delete of a sandbox that starts would leave a container for the next comparison."""
    monkeypatch.setattr("worker.leasing.watched_work.WATCH_SECONDS", 0.01)
    sandbox_id, never = start(context, user), threading.Event()

    def delete_and_answer_late() -> None:
        wish(context, sandbox_id, Desired.DELETED)
        never.wait(0.2)

    once(engine, "create", delete_and_answer_late)
    reconcile(context, sandbox_id)
    assert row(context, sandbox_id).status == Status.DELETED
    assert engine.verbs() == ["create", "remove"]
    assert not engine.containers
