"""Concurrent changes and workers on one sandbox: a newer desired state, a lost lease."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlmodel import Session

from shared.leasing import leases
from shared.queue.jobs import CheckSandbox
from shared.states import Desired, Status
from tests.doubles import RecordingPublisher
from tests.factories import ApiUser
from tests.fakes.engine import FakeEngine
from tests.worker.sandboxes.reconciler.sandboxes import (
    assert_legal,
    assert_reconciled,
    before_next,
    container_runs,
    expire_lease,
    history,
    row,
    running,
    set_desired,
    start,
)
from tests.worker.scenarios import hooked_context
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.lease_renewer import LeaseRenewer
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


class TestConcurrentChanges:
    """A newer desired state at every point of a run."""

    @pytest.mark.parametrize("verb", ["observe", "create", "put_file", "start"])
    @pytest.mark.parametrize("overtaking", [Desired.DELETED, Desired.PAUSED])
    def test_newer_desired_state_overtakes_a_start(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, verb: str, overtaking: Desired
    ) -> None:
        sandbox_id = start(context, user)
        before_next(engine, verb, lambda: set_desired(context, sandbox_id, overtaking))
        reconcile(context, sandbox_id)
        expected = Status.DELETED if overtaking == Desired.DELETED else Status.PAUSED
        assert row(context, sandbox_id).status == expected
        # A pause that overtakes the create needs no container.
        assert bool(engine.containers) == (overtaking == Desired.PAUSED and verb != "observe")
        assert_reconciled(context, sandbox_id)
        assert_legal(context, sandbox_id)

    def test_delete_overtakes_a_boot_that_never_ends(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        waiting = replace(context, settings=context.settings.model_copy(update={"health_timeout": 60}))
        engine.at_boot = "never"
        sandbox_id = start(waiting, user)
        booting = threading.Event()
        engine.before["observe"] = lambda _name: booting.set() if engine.containers else None
        worker = threading.Thread(target=reconcile, args=(waiting, sandbox_id))
        worker.start()
        assert booting.wait(10)
        set_desired(waiting, sandbox_id, Desired.DELETED)
        worker.join(10)
        assert not worker.is_alive()
        assert row(waiting, sandbox_id).status == Status.DELETED
        assert engine.containers == {}

    @pytest.mark.parametrize("verb", ["pause", "observe"])
    def test_resume_overtakes_a_pause(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, verb: str
    ) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, Desired.PAUSED)
        before_next(engine, verb, lambda: set_desired(context, sandbox_id, Desired.RUNNING))
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.RUNNING
        assert_reconciled(context, sandbox_id)

    def test_concurrent_duplicate_messages_create_one_container(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = start(context, user)
        twin = replace(context, renewer=LeaseRenewer(context.database, "worker-2", 15))
        before_next(engine, "create", lambda: reconcile(twin, sandbox_id))
        reconcile(context, sandbox_id)
        assert engine.verbs().count("create") == 1
        assert row(context, sandbox_id).status == Status.RUNNING

    def test_worker_that_lost_its_lease_touches_nothing(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = start(context, user)
        other = replace(context, renewer=LeaseRenewer(context.database, "worker-2", 15))

        def sleep_too_long() -> None:
            expire_lease(context, sandbox_id)
            reconcile(other, sandbox_id)
            set_desired(context, sandbox_id, Desired.DELETED)
            reconcile(other, sandbox_id)

        before_next(engine, "observe", sleep_too_long)
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.DELETED
        assert engine.containers == {}
        assert history(context, sandbox_id) == ["STARTING", "RUNNING", "DELETING", "DELETED"]

    def test_worker_that_lost_its_lease_executes_no_action(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = start(context, user)
        other = replace(context, renewer=LeaseRenewer(context.database, "worker-2", 15))

        def sleep_too_long() -> None:
            expire_lease(context, sandbox_id)
            reconcile(other, sandbox_id)

        # The worker stalls between its observation of the engine and its read of the row.
        sleeper, database = hooked_context(context, 2, sleep_too_long)
        reconcile(sleeper, sandbox_id)
        assert database.passed > 2
        assert engine.verbs() == ["create", "put_file", "start"]
        assert_reconciled(context, sandbox_id)

    @pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.DELETED])
    def test_desired_state_written_between_the_last_check_and_the_write_is_reconciled(
        self, context: WorkerContext, user: ApiUser, desired: Desired
    ) -> None:
        sandbox_id = start(context, user)
        interrupted = hooked_context(context, 0, lambda: None)[1]
        right = interrupted.transaction

        @contextmanager
        def transaction() -> Iterator[Session]:
            if row(context, sandbox_id).desired == Desired.RUNNING and container_runs(context):
                set_desired(context, sandbox_id, desired)
            with right() as session:
                yield session

        interrupted.transaction = transaction  # type: ignore[method-assign, assignment]
        reconcile(replace(context, database=interrupted), sandbox_id)
        assert row(context, sandbox_id).status == (Status.PAUSED if desired == Desired.PAUSED else Status.DELETED)
        assert_reconciled(context, sandbox_id)

    def test_desired_state_written_before_an_acknowledgement_is_reconciled(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, Desired.PAUSED)
        before_next(engine, "observe", lambda: set_desired(context, sandbox_id, Desired.RUNNING))

        def read_and_be_overtaken(*arguments: Any) -> Any:
            monkeypatch.undo()
            found = leases.read(*arguments)
            set_desired(context, sandbox_id, Desired.PAUSED)
            engine.impostors[container_name(sandbox_id)] = 100  # so that the worker ends without another read
            return found

        monkeypatch.setattr("worker.sandboxes.actions.leases.read", read_and_be_overtaken)
        reconcile(context, sandbox_id)
        found = row(context, sandbox_id)
        assert found.observed_generation == found.generation == 4

    @pytest.mark.parametrize(
        ("verb", "first", "then"),
        [
            ("start", Desired.RUNNING, Desired.PAUSED),
            ("pause", Desired.PAUSED, Desired.RUNNING),
            ("unpause", Desired.RUNNING, Desired.PAUSED),
        ],
    )
    def test_late_action_after_the_next_workers_is_corrected(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, verb: str, first: Desired, then: Desired
    ) -> None:
        """The engine knows no fencing token: it executes the call of a worker that stalled just before the call."""
        sandbox_id = start(context, user) if verb == "start" else running(context, user)
        if verb == "unpause":
            set_desired(context, sandbox_id, Desired.PAUSED)
            reconcile(context, sandbox_id)
        set_desired(context, sandbox_id, first)
        other = replace(context, renewer=LeaseRenewer(context.database, "worker-2", 15))

        def sleep_too_long() -> None:
            expire_lease(context, sandbox_id)
            set_desired(context, sandbox_id, then)
            reconcile(other, sandbox_id)

        before_next(engine, verb, sleep_too_long)
        reconcile(context, sandbox_id)
        assert isinstance(context.publisher, RecordingPublisher)
        assert CheckSandbox(sandbox_id, row(context, sandbox_id).node_id) in context.publisher.jobs
        reconcile(other, sandbox_id)
        assert row(context, sandbox_id).status == then
        assert row(context, sandbox_id).reason is None
        assert_reconciled(context, sandbox_id)

    def test_late_action_restarts_no_failed_sandbox(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, Desired.PAUSED)
        other = replace(context, renewer=LeaseRenewer(context.database, "worker-2", 15))

        def sleep_too_long() -> None:
            expire_lease(context, sandbox_id)
            engine.containers[container_name(sandbox_id)].state = ContainerState.DEAD
            set_desired(context, sandbox_id, Desired.RUNNING)
            engine.images.clear()
            reconcile(other, sandbox_id)

        before_next(engine, "pause", sleep_too_long)
        reconcile(context, sandbox_id)
        found = row(context, sandbox_id)
        assert (found.status, found.generation) == (Status.ERROR, found.observed_generation)

    def test_lease_is_renewed_during_a_longer_action(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        other = replace(context, renewer=LeaseRenewer(context.database, "worker-2", 15))
        sandbox_id = start(context, user)

        def take_long() -> None:
            expire_lease(context, sandbox_id)
            context.renewer.renew_all()
            reconcile(other, sandbox_id)

        before_next(engine, "create", take_long)
        reconcile(context, sandbox_id)
        assert engine.verbs().count("create") == 1
        assert row(context, sandbox_id).status == Status.RUNNING
