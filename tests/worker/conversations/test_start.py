"""From the request for a conversation to READY: on both databases, with an engine and agent servers in memory."""

import pytest

from shared.clock import now
from shared.models import Sandbox, StartTask
from shared.queue.jobs import StartConversation
from shared.states import Desired, Reason, Stage, Status
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser
from tests.fakes.agent_server import FakeAgentServer
from tests.fakes.engine import FakeEngine
from tests.rows import all_rows
from tests.worker.scenarios import (
    ASKED,
    LLM_KEY,
    MESSAGE,
    STORED,
    TOKEN,
    another,
    assert_at_rest,
    assert_failed,
    change,
    configure,
    conversation_of,
    deliver,
    request_start,
    row,
    server_of,
    set_desired,
    store_settings,
    task_of,
)
from worker.context import WorkerContext
from worker.conversations.start import start_conversation
from worker.engine.protocol import ContainerState
from worker.sandboxes.reconciler import reconcile


@pytest.fixture(autouse=True)
def _settings(context: WorkerContext, user: ApiUser) -> None:
    configure(context, user)


class TestReady:
    def test_start_in_a_running_sandbox(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        stages: list[str] = []
        task_id = request_start(context, user, sandbox_id, selected_repository="acme/app")
        server.before = lambda _method: stages.append(task_of(context, task_id).stage)
        assert task_of(context, task_id).stage == Stage.WORKING
        start_conversation(context, task_id)
        assert list(dict.fromkeys(stages)) == [
            Stage.PREPARING_REPOSITORY,
            Stage.RUNNING_SETUP_SCRIPT,
            Stage.SETTING_UP_GIT_HOOKS,
            Stage.STARTING_CONVERSATION,
        ]
        task = task_of(context, task_id)
        assert (task.stage, task.reason, task.detail) == (Stage.READY, None, None)
        assert_at_rest(task)

    @pytest.mark.parametrize(("full", "depth"), [(False, "1"), (True, "''")])
    def test_depth_of_the_clone_follows_the_settings(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer, full: bool, depth: str
    ) -> None:
        store_settings(context, user, git_full_clone=full)
        start_conversation(context, request_start(context, user, sandbox_id, selected_repository="acme/app"))
        [clone] = [command.text for command in server.commands if "clone --quiet" in command.text]
        assert f"depth={depth}\n" in clone

    def test_skills_that_the_settings_disable_are_named(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        store_settings(context, user, disabled_skills=["docker"])
        start_conversation(context, request_start(context, user, sandbox_id))
        [conversation] = server.conversations.values()
        assert conversation.body["agent_settings"]["agent_context"]["disabled_skills"] == ["docker"]

    def test_scripts_that_do_not_exist_are_not_run(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        server.brings = []
        stages: list[str] = []
        task_id = request_start(context, user, sandbox_id)
        server.before = lambda _method: stages.append(task_of(context, task_id).stage)
        start_conversation(context, task_id)
        assert list(dict.fromkeys(stages)) == [Stage.PREPARING_REPOSITORY, Stage.STARTING_CONVERSATION]
        assert task_of(context, task_id).stage == Stage.READY
        assert server.calls.count("run_command") == 2

    def test_setup_script_may_create_a_git_hook(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        server.brings = ["setup.sh"]
        start_conversation(context, request_start(context, user, sandbox_id))
        assert server.calls.count("run_command") == 4

    def test_start_with_a_new_sandbox(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, publisher: RecordingPublisher
    ) -> None:
        task_id = request_start(context, user)
        start_conversation(context, task_id)
        waiting = task_of(context, task_id)
        assert waiting.stage == Stage.WAITING_FOR_SANDBOX
        assert_at_rest(waiting)
        assert waiting.sandbox_id
        reconcile(context, waiting.sandbox_id)
        assert StartConversation(task_id, NODE_ID) in publisher.jobs
        deliver(context)
        assert task_of(context, task_id).stage == Stage.READY
        assert list(server_of(engine, waiting.sandbox_id).conversations) == [waiting.conversation_id]

    def test_unknown_task_is_dropped(
        self,
        context: WorkerContext,
        user: ApiUser,
        sandbox_id: str,
        server: FakeAgentServer,
        publisher: RecordingPublisher,
    ) -> None:
        request_start(context, user, sandbox_id)
        publisher.jobs.clear()
        before = all_rows(context.database)
        start_conversation(context, "0" * 32)
        assert all_rows(context.database) == before
        assert (publisher.jobs, server.calls) == ([], [])

    @pytest.mark.parametrize("stage", [Stage.READY, Stage.ERROR])
    def test_late_message_has_no_effect(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer, stage: Stage
    ) -> None:
        task_id = request_start(context, user, sandbox_id)
        change(context, StartTask, task_id, stage=stage, due_at=now())
        start_conversation(context, task_id)
        assert task_of(context, task_id).stage == stage
        assert server.calls == []

    def test_duplicate_message_at_every_request_has_no_effect(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        task_id = request_start(context, user, sandbox_id)
        other = another(context)
        server.before = lambda _method: start_conversation(other, task_id)
        start_conversation(context, task_id)
        assert task_of(context, task_id).stage == Stage.READY
        assert server.calls.count("create_conversation") == 1

    def test_row_of_the_conversation_has_the_fields_of_the_request(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        listed: list[bool] = []
        task_id = request_start(
            context,
            user,
            sandbox_id,
            selected_repository="acme/app",
            selected_branch="main",
            git_provider="github",
            trigger="resolver",
            pr_number=[7],
            public=True,
            llm_model="openai/another",
        )

        def record_listed(method: str) -> None:
            if method == "create_conversation":
                listed.append(conversation_of(context, task_id).listed)  # type: ignore[union-attr]

        server.before = record_listed
        start_conversation(context, task_id)
        found = conversation_of(context, task_id)
        assert found
        assert listed == [False]
        assert (found.listed, found.owner_id, found.sandbox_id) == (True, user.id, sandbox_id)
        assert (found.selected_repository, found.selected_branch) == ("acme/app", "main")
        assert (found.git_provider, found.trigger, found.pr_number) == ("github", "resolver", [7])
        assert (found.public, found.llm_model, found.max_budget) == (True, "openai/another", 2.5)
        assert found.working_dir == "/workspace/project/app"
        assert (found.title, found.title_settled) == (f"Conversation {found.id[:5]}", False)
        assert_at_rest(found)

    def test_child_is_linked_to_its_parent_and_works_in_its_sandbox(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        parent_task = request_start(context, user, sandbox_id, llm_model="openai/another")
        start_conversation(context, parent_task)
        parent_id = task_of(context, parent_task).conversation_id
        child_task = request_start(context, user, None, parent_conversation_id=parent_id)
        start_conversation(context, child_task)
        child = conversation_of(context, child_task)
        assert child
        assert (child.parent_id, child.sandbox_id, child.llm_model) == (parent_id, sandbox_id, "openai/another")
        assert len(server.conversations) == 2

    def test_defect_17_title_of_the_request_is_set_and_kept(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        task_id = request_start(context, user, sandbox_id, title="My title")
        start_conversation(context, task_id)
        conversation = server.get(task_of(context, task_id).conversation_id)
        found = conversation_of(context, task_id)
        assert (conversation.title, conversation.body["autotitle"]) == ("My title", False)
        assert found
        assert (found.title, found.title_settled) == ("My title", True)

    def test_body_carries_settings_and_secrets(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        task_id = request_start(context, user, sandbox_id)
        start_conversation(context, task_id)
        body = server.get(task_of(context, task_id).conversation_id).body
        assert body["agent_settings"]["llm"]["api_key"] == LLM_KEY
        assert body["agent_settings"]["llm"]["model"] == "openai/demo"
        values = {name: secret["value"] for name, secret in body["secrets"].items()}
        assert values == {"GITHUB_TOKEN": TOKEN, "STORED": STORED, "ASKED": ASKED}
        assert body["autotitle"] is True
        assert body["initial_message"]["content"] == MESSAGE["content"]


class TestWaiting:
    @pytest.mark.parametrize("desired", [Desired.DELETED, Desired.PAUSED, Desired.STOPPED])
    def test_desired_state_that_is_not_reached_yet_ends_the_start(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, desired: Desired
    ) -> None:
        task_id = request_start(context, user, sandbox_id)
        set_desired(context, sandbox_id, desired)
        start_conversation(context, task_id)
        reason = Reason.SANDBOX_DELETED if desired == Desired.DELETED else Reason.SANDBOX_PAUSED
        assert_failed(context, task_id, reason)

    def test_failed_sandbox_fails_the_start(
        self, context: WorkerContext, user: ApiUser, engine: FakeEngine, publisher: RecordingPublisher
    ) -> None:
        engine.at_boot = 3
        task_id = request_start(context, user)
        start_conversation(context, task_id)
        sandbox_id = str(task_of(context, task_id).sandbox_id)
        reconcile(context, sandbox_id)
        deliver(context)
        task = assert_failed(context, task_id, Reason.SANDBOX_FAILED, "exit_code")
        assert "exit code 3" in (task.detail or "")
        assert "the last line" in (task.detail or "")
        assert row(context, Sandbox, sandbox_id).status == Status.DELETED

    def test_deleted_sandbox_fails_the_start(self, context: WorkerContext, user: ApiUser) -> None:
        task_id = request_start(context, user)
        start_conversation(context, task_id)
        sandbox_id = str(task_of(context, task_id).sandbox_id)
        set_desired(context, sandbox_id, Desired.DELETED)
        reconcile(context, sandbox_id)
        deliver(context)
        assert_failed(context, task_id, Reason.SANDBOX_DELETED)

    def test_paused_sandbox_fails_the_start(self, context: WorkerContext, user: ApiUser) -> None:
        task_id = request_start(context, user)
        start_conversation(context, task_id)
        sandbox_id = str(task_of(context, task_id).sandbox_id)
        set_desired(context, sandbox_id, Desired.PAUSED)
        reconcile(context, sandbox_id)
        deliver(context)
        assert_failed(context, task_id, Reason.SANDBOX_PAUSED)

    def test_paused_sandbox_is_resumed_first(self, context: WorkerContext, user: ApiUser, sandbox_id: str) -> None:
        set_desired(context, sandbox_id, Desired.PAUSED)
        reconcile(context, sandbox_id)
        task_id = request_start(context, user, sandbox_id)
        start_conversation(context, task_id)
        assert task_of(context, task_id).stage == Stage.WAITING_FOR_SANDBOX
        reconcile(context, sandbox_id)
        deliver(context)
        assert task_of(context, task_id).stage == Stage.READY

    def test_sandbox_that_an_operator_paused_during_its_resume_fails_the_start(
        self,
        monkeypatch: pytest.MonkeyPatch,
        context: WorkerContext,
        user: ApiUser,
        engine: FakeEngine,
        sandbox_id: str,
    ) -> None:
        # The sandbox is PAUSED before and after: no transition enqueues the task.
        set_desired(context, sandbox_id, Desired.PAUSED)
        reconcile(context, sandbox_id)
        task_id = request_start(context, user, sandbox_id)
        start_conversation(context, task_id)
        unpause = engine.unpause

        def unpause_without_effect(name: str) -> None:
            unpause(name)
            engine.containers[name].state = ContainerState.PAUSED

        monkeypatch.setattr(engine, "unpause", unpause_without_effect)
        reconcile(context, sandbox_id)
        assert row(context, Sandbox, sandbox_id).status == Status.PAUSED
        deliver(context)
        assert_failed(context, task_id, Reason.SANDBOX_PAUSED)
