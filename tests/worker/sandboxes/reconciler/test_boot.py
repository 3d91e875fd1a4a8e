"""A start, from the desired state to RUNNING, and the starts that fail."""

import httpx
import pytest

from shared.db.database import Database
from shared.queue.jobs import StartConversation
from shared.states import Desired, Stage, Status
from tests.doubles import RecordingPublisher
from tests.factories import ApiUser, make_start_task
from tests.fakes.engine import IMAGE, FakeEngine
from tests.worker.sandboxes.reconciler.sandboxes import (
    assert_reconciled,
    container_request_of,
    expire_lease,
    history,
    mark_due,
    row,
    running,
    set_desired,
    start,
)
from tests.worker.scenarios import claim, warm
from worker.context import WorkerContext
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


class TestStart:
    def test_start_leads_to_running_with_urls(self, context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
        sandbox_id = running(context, user)
        found = row(context, sandbox_id)
        assert engine.verbs() == ["create", "put_file", "start"]
        assert found.exposed_urls
        assert found.exposed_urls[0]["name"] == "AGENT_SERVER"
        assert found.ready_at is not None
        assert history(context, sandbox_id) == ["STARTING", "RUNNING"]
        assert_reconciled(context, sandbox_id)

    def test_inspected_container_does_not_show_the_key(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = running(context, user)
        container = engine.containers[container_name(sandbox_id)]
        assert container.session_key
        assert container.session_key not in repr(container.request)

    def test_duplicate_message_has_no_effect(self, context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
        sandbox_id = running(context, user)
        reconcile(context, sandbox_id)
        assert engine.verbs() == ["create", "put_file", "start"]

    def test_message_about_no_row_is_dropped(self, context: WorkerContext, engine: FakeEngine) -> None:
        reconcile(context, "0" * 32)
        assert engine.calls == []

    def test_worker_that_died_after_create_is_replaced(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = start(context, user)

        def die(_name: str) -> None:
            raise SystemExit

        engine.before["put_file"] = die
        with pytest.raises(SystemExit):
            reconcile(context, sandbox_id)
        engine.before.clear()
        expire_lease(context, sandbox_id)
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.RUNNING
        assert engine.verbs().count("create") == 1
        assert len(engine.containers) == 1

    @pytest.mark.parametrize("is_paused", [True, False])
    def test_container_started_from_outside_before_its_configuration_is_restarted(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, is_paused: bool
    ) -> None:
        sandbox_id = start(context, user)
        engine.create(container_request_of(context, sandbox_id))
        engine.start(container_name(sandbox_id))
        if is_paused:
            set_desired(context, sandbox_id, Desired.PAUSED)
            reconcile(context, sandbox_id)
            set_desired(context, sandbox_id, Desired.RUNNING)
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.RUNNING
        assert engine.verbs().count("start") == 2
        assert_reconciled(context, sandbox_id)

    def test_wrong_server_for_a_moment_after_the_restart_does_not_fail_the_start(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = start(context, user)
        name = container_name(sandbox_id)
        engine.create(container_request_of(context, sandbox_id))
        engine.start(name)
        engine.before["start"] = lambda _: engine.impostors.update({name: 1})
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.RUNNING

    def test_image_is_pulled_when_missing(self, context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
        engine.images.clear()
        engine.pullable = {IMAGE}
        running(context, user)
        assert "pull" in engine.verbs()

    def test_engine_that_is_down_loses_no_desired_state(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = start(context, user)
        engine.down = True
        for _ in range(context.settings.max_attempts + 2):
            reconcile(context, sandbox_id)
        found = row(context, sandbox_id)
        assert (found.status, found.reason) == (Status.STARTING, "engine_error")
        assert found.due_at is not None
        engine.down = False
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.RUNNING

    def test_start_task_that_waits_is_enqueued(
        self, context: WorkerContext, user: ApiUser, database: Database, publisher: RecordingPublisher
    ) -> None:
        sandbox_id = start(context, user)
        task = make_start_task(database, user, row(context, sandbox_id), stage=Stage.WAITING_FOR_SANDBOX, due_at=None)
        reconcile(context, sandbox_id)
        assert publisher.jobs == [StartConversation(task.id, row(context, sandbox_id).node_id)]


class TestFailure:
    def test_missing_image_fails_the_start(self, context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
        engine.images.clear()
        sandbox_id = start(context, user)
        reconcile(context, sandbox_id)
        self.assert_failed(context, engine, sandbox_id, "image_pull_failed")

    def test_container_that_exits_at_boot_fails_the_start(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        engine.at_boot = 3
        sandbox_id = start(context, user)
        reconcile(context, sandbox_id)
        self.assert_failed(context, engine, sandbox_id, "exit_code")
        detail = row(context, sandbox_id).detail or ""
        assert "exit code 3" in detail
        assert "the last line" in detail

    def test_agent_server_that_never_responds_fails_the_start(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        engine.at_boot = "never"
        sandbox_id = start(context, user)
        reconcile(context, sandbox_id)
        self.assert_failed(context, engine, sandbox_id, "health_timeout")

    def test_agent_server_of_another_sandbox_fails_the_start(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = start(context, user)
        engine.impostors[container_name(sandbox_id)] = 100
        reconcile(context, sandbox_id)
        self.assert_failed(context, engine, sandbox_id, "wrong_agent_server")

    def test_agent_server_of_another_sandbox_for_a_moment_does_not_fail_the_start(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        sandbox_id = start(context, user)
        engine.impostors[container_name(sandbox_id)] = 1
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.RUNNING

    def test_warm_agent_server_that_refuses_its_owner_fails_the_start(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        warm_id = warm(context)
        reconcile(context, warm_id)
        engine.servers[container_name(warm_id)].refuse["initialize"] = httpx.Response(500)
        assert claim(context, user) == warm_id
        for _ in range(context.settings.max_attempts):
            assert row(context, warm_id).status == Status.STARTING
            reconcile(context, warm_id)
        self.assert_failed(context, engine, warm_id, "initialize_failed")

    def test_engine_that_keeps_refusing_fails_the_start(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        engine.refuse = {"create": 100}
        sandbox_id = start(context, user)
        for _ in range(context.settings.max_attempts):
            assert row(context, sandbox_id).status == Status.STARTING
            reconcile(context, sandbox_id)
        self.assert_failed(context, engine, sandbox_id, "create_failed")

    def test_engine_that_refuses_temporarily_does_not_fail_the_start(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        engine.refuse = {"start": 2}
        sandbox_id = start(context, user)
        for _ in range(3):
            reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.RUNNING
        assert row(context, sandbox_id).attempt == 0

    def test_late_message_keeps_the_first_reason(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine
    ) -> None:
        engine.at_boot = 3
        sandbox_id = start(context, user)
        reconcile(context, sandbox_id)
        mark_due(context, sandbox_id)
        reconcile(context, sandbox_id)
        self.assert_failed(context, engine, sandbox_id, "exit_code")

    def test_resume_retries_a_failed_start(self, context: WorkerContext, user: ApiUser, engine: FakeEngine) -> None:
        engine.at_boot = 3
        sandbox_id = start(context, user)
        reconcile(context, sandbox_id)
        engine.at_boot = None
        set_desired(context, sandbox_id, Desired.RUNNING)
        reconcile(context, sandbox_id)
        assert row(context, sandbox_id).status == Status.RUNNING
        assert row(context, sandbox_id).reason is None

    def assert_failed(self, context: WorkerContext, engine: FakeEngine, sandbox_id: str, reason: str) -> None:
        found = row(context, sandbox_id)
        assert (found.status, found.reason) == (Status.ERROR, reason)
        assert engine.containers == {}
        assert engine.volumes == {}
        assert_reconciled(context, sandbox_id)
