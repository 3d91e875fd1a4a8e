"""Starts that end in ERROR have a reason, and leave nothing behind."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from sqlmodel import Session, col, update

from shared.clock import now
from shared.crypto import Vault
from shared.db.database import Database
from shared.leasing import waiters
from shared.models import Sandbox, StartTask
from shared.queue.jobs import DeleteSandbox
from shared.states import Desired, Reason, Stage, Status
from shared.users import settings_store
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_event
from tests.fakes.agent_server import FakeAgentServer, Reply
from tests.fakes.engine import FakeEngine
from tests.interleaving import _is_waiting
from tests.waiting import eventually
from tests.worker.conversations.start_failures.failures import assert_no_secret, logged, unreachable
from tests.worker.scenarios import (
    SECRETS,
    TOKEN,
    another,
    assert_failed,
    change,
    conversation_of,
    deliver,
    request_start,
    row,
    server_of,
    task_of,
)
from worker.context import WorkerContext
from worker.conversations.start import start_conversation
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile


class TestFailure:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ("init --quiet", Reason.WORKSPACE_SETUP_FAILED),
            (".openhands/setup.sh", Reason.SETUP_SCRIPT_FAILED),
            (".openhands/pre-commit.sh", Reason.GIT_HOOKS_FAILED),
        ],
    )
    def test_failed_command_fails_the_start(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer, text: str, reason: Reason
    ) -> None:
        server.replies = {text: Reply(2, None, f"no such luck: {' '.join(SECRETS)}")}
        task_id = request_start(context, user, sandbox_id)
        start_conversation(context, task_id)
        task = assert_failed(context, task_id, reason, "no such luck")
        assert_no_secret(task.detail or "")

    def test_defect_33_failed_clone_fails_the_start(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        server.replies = {"clone --quiet": Reply(128, None, f"fatal: repository not found, {TOKEN}\n")}
        task_id = request_start(context, user, sandbox_id, selected_repository="acme/app")
        start_conversation(context, task_id)
        task = assert_failed(context, task_id, Reason.CLONE_FAILED, "repository not found")
        assert TOKEN not in (task.detail or "")

    def test_model_without_a_key_fails_the_start(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        task_id = request_start(context, user, sandbox_id)
        with context.database.transaction() as session:
            settings_store.change(session, context.vault, user.id, {"llm_api_key": ""})
        start_conversation(context, task_id)
        assert_failed(context, task_id, Reason.LLM_KEY_MISSING)
        assert server.conversations == {}

    def test_refused_conversation_fails_the_start(
        self,
        context: WorkerContext,
        user: ApiUser,
        sandbox_id: str,
        server: FakeAgentServer,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.DEBUG)
        problem = {"loc": ["body", "secrets"], "msg": f"no good: {' '.join(SECRETS)}", "input": list(SECRETS)}
        server.refuse = {"create_conversation": httpx.Response(422, json={"detail": [problem]})}
        task_id = request_start(context, user, sandbox_id)
        start_conversation(context, task_id)
        task = assert_failed(context, task_id, Reason.AGENT_SERVER_REFUSED, "no good")
        assert_no_secret((task.detail or "") + repr(task.request) + logged(caplog))

    def test_server_that_does_not_respond_fails_the_start(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        server.before = unreachable
        task_id = request_start(context, user, sandbox_id)
        for attempt in range(1, context.settings.max_attempts):
            start_conversation(context, task_id)
            waiting = task_of(context, task_id)
            assert (waiting.stage, waiting.attempt) == (Stage.PREPARING_REPOSITORY, attempt)
            assert waiting.due_at
            assert waiting.due_at > waiting.updated_at
            assert waiting.lease_owner is None
        start_conversation(context, task_id)
        assert_failed(context, task_id, Reason.AGENT_SERVER_UNREACHABLE, "ConnectError")

    def test_server_that_redirects_to_no_host_fails_the_start(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        """The fake's client parses the address, and so raises an error that the worker's own client does not raise."""
        server.refuse = {"create_conversation": httpx.Response(307, headers={"Location": "foo:bar"})}
        task_id = request_start(context, user, sandbox_id)
        for _ in range(context.settings.max_attempts):
            start_conversation(context, task_id)
        assert_failed(context, task_id, Reason.AGENT_SERVER_UNREACHABLE, "InvalidURL")

    def test_server_that_responds_late_does_not_fail_the_start(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        task_id = request_start(context, user, sandbox_id)
        server.before = unreachable
        start_conversation(context, task_id)
        server.before = lambda _method: None
        start_conversation(context, task_id)
        assert task_of(context, task_id).stage == Stage.READY

    def test_wrong_server_fails_the_start(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, vault: Vault
    ) -> None:
        change(context, Sandbox, sandbox_id, session_key=vault.encrypt("another key"))
        task_id = request_start(context, user, sandbox_id)
        for _ in range(context.settings.max_attempts):
            start_conversation(context, task_id)
        assert_failed(context, task_id, Reason.WRONG_SERVER)

    def test_server_that_temporarily_rejects_its_key_is_retried(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, vault: Vault
    ) -> None:
        key = row(context, Sandbox, sandbox_id).session_key
        change(context, Sandbox, sandbox_id, session_key=vault.encrypt("another sandbox's key"))
        task_id = request_start(context, user, sandbox_id)
        start_conversation(context, task_id)
        assert task_of(context, task_id).stage == Stage.PREPARING_REPOSITORY
        change(context, Sandbox, sandbox_id, session_key=key)
        start_conversation(context, task_id)
        assert task_of(context, task_id).stage == Stage.READY

    def test_defect_03_stored_events_are_deleted_and_the_requested_sandbox_is_kept(
        self,
        context: WorkerContext,
        user: ApiUser,
        sandbox_id: str,
        server: FakeAgentServer,
        publisher: RecordingPublisher,
    ) -> None:
        task_id = request_start(context, user, sandbox_id, title="refused below")

        def report(_method: str) -> None:
            if (found := conversation_of(context, task_id)) is not None:
                make_event(context.database, found)

        server.before = report
        server.refuse = {"rename_conversation": httpx.Response(422, json={"detail": "no such title"})}
        start_conversation(context, task_id)
        assert_failed(context, task_id, Reason.AGENT_SERVER_REFUSED, "no such title")
        assert server.conversations == {}
        assert row(context, Sandbox, sandbox_id).desired == Desired.RUNNING
        assert publisher.jobs == []

    @pytest.mark.parametrize("method", ["run_command", "create_conversation"])
    def test_defect_03_sandbox_created_for_the_start_is_deleted(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, publisher: RecordingPublisher, method: str
    ) -> None:
        task_id = request_start(context, user)
        sandbox_id = str(task_of(context, task_id).sandbox_id)
        reconcile(context, sandbox_id)
        server_of(engine, sandbox_id).refuse = {method: httpx.Response(422, json={"detail": "no"})}
        publisher.jobs.clear()
        start_conversation(context, task_id)
        assert_failed(context, task_id, Reason.AGENT_SERVER_REFUSED)
        assert row(context, Sandbox, sandbox_id).desired == Desired.DELETED
        assert publisher.jobs == [DeleteSandbox(sandbox_id, NODE_ID)]
        deliver(context)
        assert row(context, Sandbox, sandbox_id).status == Status.DELETED
        assert container_name(sandbox_id) not in engine.containers

    def test_worker_that_lost_its_lease_does_not_delete_the_next_worker_s_conversation(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        task_id = request_start(context, user, sandbox_id)

        def be_overtaken(method: str) -> None:
            if method == "create_conversation":
                server.before = lambda _method: None
                change(context, StartTask, task_id, lease_until=now())
                start_conversation(another(context), task_id)
                server.refuse = {method: httpx.Response(422, json={"detail": "too late"})}

        server.before = be_overtaken
        start_conversation(context, task_id)
        task = task_of(context, task_id)
        assert task.stage == Stage.READY
        assert list(server.conversations) == [task.conversation_id]


def test_worker_that_writes_the_sandbox_s_status_causes_no_deadlock(
    context: WorkerContext, user: ApiUser, engine: FakeEngine, database: Database
) -> None:
    task_id = request_start(context, user)
    sandbox_id = str(task_of(context, task_id).sandbox_id)
    reconcile(context, sandbox_id)
    server_of(engine, sandbox_id).refuse = {"run_command": httpx.Response(422, json={"detail": "no"})}

    def write_status(session: Session) -> None:
        session.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(updated_at=now()))

    def wake(session: Session) -> None:
        waiters.enqueue_waiters(session, sandbox_id, now())

    overlap_in_the_middle(database, write_status, lambda: start_conversation(context, task_id), wake)
    assert assert_failed(context, task_id, Reason.AGENT_SERVER_REFUSED).attempt == 0


def overlap_in_the_middle(
    database: Database, first: Callable[[Session], None], other: Callable[[], None], then: Callable[[Session], None]
) -> None:
    """Call `first` in a transaction, and `then` in the same one as soon as `other` waits for it."""
    with ThreadPoolExecutor(max_workers=1) as pool:
        with database.transaction() as session:
            first(session)
            waiting = pool.submit(other)
            eventually(lambda: waiting.done() or _is_waiting(database, waiting))
            then(session)
        waiting.result(timeout=30)


def test_bug_in_this_service_ends_in_internal_error(context: WorkerContext, user: ApiUser, sandbox_id: str) -> None:
    task_id = request_start(context, user, sandbox_id)
    change(context, StartTask, task_id, secrets="damaged")
    for _ in range(context.settings.max_attempts):
        assert task_of(context, task_id).stage != Stage.ERROR
        start_conversation(context, task_id)
    assert_failed(context, task_id, Reason.INTERNAL_ERROR)


def test_sandbox_that_another_start_uses_outlives_the_start_it_was_created_for(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    first = request_start(context, user, sandbox_id)
    change(context, Sandbox, sandbox_id, goes_with_conversations=True)
    second = request_start(context, user, sandbox_id)
    start_conversation(context, second)
    server.replies = {"init --quiet": Reply(2, None, "no such luck")}
    start_conversation(context, first)
    assert_failed(context, first, Reason.WORKSPACE_SETUP_FAILED)
    assert row(context, Sandbox, sandbox_id).desired == Desired.RUNNING
