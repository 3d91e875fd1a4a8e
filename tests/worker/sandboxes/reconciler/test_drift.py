"""Drift is reported and not corrected; a bug in this service is reported."""

from sqlmodel import col, update

from shared.models import Sandbox
from shared.states import Desired, Status
from tests.factories import ApiUser
from tests.fakes.engine import FakeEngine
from tests.worker.sandboxes.reconciler.sandboxes import mark_due, row, running, set_desired, start
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


class TestDrift:
    def test_container_that_died_is_an_error_with_its_files_kept(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        container = engine.containers[container_name(sandbox_id)]
        container.state, container.exit_code, container.oom_killed = ContainerState.EXITED, 137, True
        mark_due(context, sandbox_id)
        reconcile(context, sandbox_id)
        assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (Status.ERROR, "oom_killed")
        assert container_name(sandbox_id) in engine.volumes
        set_desired(context, sandbox_id, Desired.RUNNING)
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.RUNNING

    def test_container_that_vanished_is_created_on_its_files(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        del engine.containers[container_name(sandbox_id)]
        mark_due(context, sandbox_id)
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).reason == "container_missing"
        assert "files" not in (row(context, sandbox_id).detail or "")
        set_desired(context, sandbox_id, Desired.RUNNING)
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.RUNNING

    def test_detail_says_that_the_files_were_removed_with_the_container(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        engine.remove(container_name(sandbox_id))
        mark_due(context, sandbox_id)
        reconcile(context, sandbox_id)
        found = row(context, sandbox_id)
        assert found.reason == "container_missing"
        assert "and so were the sandbox's files" in (found.detail or "")

    def test_container_paused_by_an_operator_shows_as_paused(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        engine.pause(container_name(sandbox_id))
        mark_due(context, sandbox_id)
        reconcile(context, sandbox_id)
        assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (Status.PAUSED, "paused_outside")


def test_bug_in_this_service_ends_in_internal_error(context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
    """A session key that can't be decrypted: no run can succeed."""
    sandbox_id = start(context, user)
    with context.database.transaction() as session:
        session.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(session_key="damaged"))
    for _ in range(context.settings.max_attempts):
        assert row(context, sandbox_id).status == Status.STARTING
        reconcile(context, sandbox_id)
    assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (Status.ERROR, "internal_error")
    set_desired(context, sandbox_id, Desired.DELETED)
    reconcile(context, sandbox_id)
    assert row(context, sandbox_id).status == Status.DELETED
    assert engine.containers == {}
