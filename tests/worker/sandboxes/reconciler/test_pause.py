"""Pause, stop and resume."""

import pytest

from shared.states import PAUSING, Desired, Status
from tests.factories import ApiUser
from tests.fakes.engine import FakeEngine
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
from worker.context import WorkerContext
from worker.engine.protocol import ContainerState
from worker.loops.resync import resync
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


class TestPauseAndResume:
    def test_pause_keeps_the_memory_and_resume_continues(self, context: WorkerContext, user: ApiUser) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, Desired.PAUSED)
        reconcile(context, sandbox_id)
        found = row(context, sandbox_id)
        assert (found.status, found.pause_kind, found.exposed_urls) == (Status.PAUSED, "FROZEN", None)
        set_desired(context, sandbox_id, Desired.RUNNING)
        reconcile(context, sandbox_id)
        assert history(context, sandbox_id) == ["STARTING", "RUNNING", "PAUSED", "RUNNING"]
        assert_reconciled(context, sandbox_id)

    def test_resume_of_a_stopped_sandbox_boots_it(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, Desired.PAUSED)
        reconcile(context, sandbox_id)
        engine.containers[container_name(sandbox_id)].state = ContainerState.EXITED
        mark_due(context, sandbox_id)
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).pause_kind == "STOPPED"
        set_desired(context, sandbox_id, Desired.RUNNING)
        reconcile(context, sandbox_id)
        assert history(context, sandbox_id)[-2:] == ["STARTING", "RUNNING"]


class TestStop:
    @pytest.mark.parametrize("paused", [False, True])
    def test_stop_frees_the_memory_and_keeps_the_files(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, paused: bool
    ) -> None:
        sandbox_id = running(context, user)
        if paused:
            set_desired(context, sandbox_id, Desired.PAUSED)
            reconcile(context, sandbox_id)
        set_desired(context, sandbox_id, Desired.STOPPED)
        reconcile(context, sandbox_id)
        found = row(context, sandbox_id)
        assert (found.status, found.pause_kind, found.reason) == (Status.PAUSED, "STOPPED", None)
        assert engine.containers[container_name(sandbox_id)].state == ContainerState.EXITED
        assert list(engine.volumes) == [container_name(sandbox_id)]
        assert_reconciled(context, sandbox_id)

    def test_resume_of_a_stopped_sandbox_boots_on_its_files(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = self.stopped(context, user)
        set_desired(context, sandbox_id, Desired.RUNNING)
        reconcile(context, sandbox_id)
        assert history(context, sandbox_id)[-3:] == ["PAUSED", "STARTING", "RUNNING"]
        assert engine.verbs().count("create") == 1

    @pytest.mark.parametrize("desired", [Desired.PAUSED, Desired.STOPPED])
    def test_stopped_sandbox_stays_stopped(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, desired: Desired
    ) -> None:
        sandbox_id = self.stopped(context, user)
        engine.calls.clear()
        set_desired(context, sandbox_id, desired)
        reconcile(context, sandbox_id)
        assert (row(context, sandbox_id).pause_kind, engine.verbs()) == ("STOPPED", [])
        assert_reconciled(context, sandbox_id)

    def test_stop_during_the_boot_stops_the_sandbox(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = start(context, user)
        before_next(engine, "start", lambda: set_desired(context, sandbox_id, Desired.STOPPED))
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).pause_kind == "STOPPED"
        assert_reconciled(context, sandbox_id)

    def test_stop_interrupts_running_agents_first(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        server = engine.servers[container_name(sandbox_id)]
        conversation = server.add("1" * 32, execution_status="running")
        set_desired(context, sandbox_id, Desired.STOPPED)
        statuses: list[str] = []
        before_next(engine, "stop", lambda: statuses.append(conversation.execution_status))
        reconcile(context, sandbox_id)
        assert statuses == ["paused"]

    def test_sandbox_resumed_by_an_operator_shows_as_running(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = self.stopped(context, user)
        for state, status, reason in (
            (ContainerState.RUNNING, Status.RUNNING, "resumed_outside"),
            (ContainerState.PAUSED, Status.PAUSED, "paused_outside"),
        ):
            engine.containers[container_name(sandbox_id)].state = state
            mark_due(context, sandbox_id)
            reconcile(context, sandbox_id)
            assert (row(context, sandbox_id).status, row(context, sandbox_id).reason) == (status, reason)

    def stopped(self, context: WorkerContext, user: ApiUser) -> str:
        sandbox_id = running(context, user)
        set_desired(context, sandbox_id, Desired.STOPPED)
        reconcile(context, sandbox_id)
        return sandbox_id


@pytest.mark.parametrize("desired", sorted(PAUSING))
class TestBeforeTheFirstRun:
    """A drain waits for each sandbox of its node: also for one that never ran, on an engine that creates nothing."""

    def test_pause_needs_neither_a_container_nor_an_image(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, desired: Desired
    ) -> None:
        sandbox_id = start(context, user)
        engine.images.clear()
        engine.fail = {"create": 1000, "pull": 1000}
        reconcile(context, sandbox_id)
        set_desired(context, sandbox_id, desired)
        reconcile(context, sandbox_id)
        found = row(context, sandbox_id)
        assert (found.status, found.pause_kind, found.reason) == (Status.PAUSED, "STOPPED", None)
        resync(context)
        assert_reconciled(context, sandbox_id)

    def test_resume_before_the_first_run_boots_the_sandbox(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, desired: Desired
    ) -> None:
        sandbox_id = start(context, user)
        set_desired(context, sandbox_id, desired)
        reconcile(context, sandbox_id)
        assert engine.verbs() == []
        set_desired(context, sandbox_id, Desired.RUNNING)
        reconcile(context, sandbox_id)
        assert history(context, sandbox_id) == ["STARTING", "PAUSED", "STARTING", "RUNNING"]
