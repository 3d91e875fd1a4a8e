"""A start in a sandbox that already has a clone: the conversation shows the branch that the clone is on."""

from typing import Any

import httpx
import pytest

from shared.agent_server import paths
from shared.models import Conversation, Sandbox, StartTask
from shared.states import Reason, Stage
from shared.users import secrets
from tests.factories import ApiUser, make_conversation, make_start_task
from tests.fakes.agent_server import FakeAgentServer, Reply
from tests.fakes.engine import FakeEngine
from tests.worker.scenarios import assert_failed, change, configure, request_start, row, running, server_of
from worker.context import WorkerContext
from worker.conversations.start import start_conversation

REPOSITORY = {"selected_repository": "acme/app", "git_provider": "github"}


@pytest.fixture
def sandbox_id(context: WorkerContext, user: ApiUser) -> str:
    configure(context, user)
    return running(context, user)


@pytest.fixture
def server(engine: FakeEngine, sandbox_id: str) -> FakeAgentServer:
    """The sandbox's agent server; the clone is on a branch that an agent has created."""
    server = server_of(engine, sandbox_id)
    server.replies["echo cloned"] = Reply(0, "cloned\nfeature/made\n")
    return server


def started(context: WorkerContext, task_id: str) -> Conversation:
    start_conversation(context, task_id)
    return row(context, Conversation, row(context, StartTask, task_id).conversation_id)


def test_branch_of_the_request_is_checked_out(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    found = started(context, request_start(context, user, sandbox_id, **REPOSITORY, selected_branch="dev"))
    assert found.selected_branch == "dev"
    assert any("git checkout" in command.text and "branch=dev" in command.text for command in server.commands)


def test_branch_that_does_not_exist_ends_the_start(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    server.replies["git checkout"] = Reply(1, None, "couldn't find remote ref refs/heads/nope")
    task_id = request_start(context, user, sandbox_id, **REPOSITORY, selected_branch="nope")
    start_conversation(context, task_id)
    assert_failed(context, task_id, Reason.CLONE_FAILED)
    assert "refs/heads/nope" in str(row(context, StartTask, task_id).detail)


@pytest.mark.usefixtures("server")
def test_child_conversation_shows_the_branch_of_the_clone(
    context: WorkerContext, user: ApiUser, sandbox_id: str
) -> None:
    sandbox = row(context, Sandbox, sandbox_id)
    parent = make_conversation(context.database, user, sandbox, **REPOSITORY, selected_branch="dev")
    found = started(context, request_start(context, user, sandbox_id, parent_conversation_id=parent.id))
    assert (found.selected_repository, found.selected_branch) == ("acme/app", "feature/made")


def first(context: WorkerContext, user: ApiUser, sandbox_id: str, **columns: Any) -> Conversation:
    """A conversation in the clone, on the branch that its agent has created."""
    found = started(context, request_start(context, user, sandbox_id, **REPOSITORY, selected_branch="feature/made"))
    change(context, Conversation, found.id, **columns)
    return found


def switches(server: FakeAgentServer) -> list[str]:
    return [command.text for command in server.commands if "git checkout" in command.text]


@pytest.mark.parametrize(
    "columns",
    [{"execution_status": "running"}, {"execution_status": "waiting_for_confirmation"}, {"awaits_sandbox": True}],
)
def test_busy_conversation_keeps_its_branch(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer, columns: dict[str, Any]
) -> None:
    at_work = first(context, user, sandbox_id, **columns)
    task_id = request_start(context, user, sandbox_id, **REPOSITORY, selected_branch="dev")
    start_conversation(context, task_id)
    assert_failed(context, task_id, Reason.CLONE_FAILED, f"{at_work.id} is using the clone, on feature/made")
    assert switches(server) == []
    assert row(context, Conversation, at_work.id).selected_branch == "feature/made"


@pytest.mark.usefixtures("server")
def test_other_conversations_may_use_the_branch_of_a_busy_conversation(
    context: WorkerContext, user: ApiUser, sandbox_id: str
) -> None:
    first(context, user, sandbox_id, execution_status="running")
    found = started(context, request_start(context, user, sandbox_id, **REPOSITORY, selected_branch="feature/made"))
    assert found.listed


@pytest.mark.usefixtures("server")
def test_idle_conversation_shows_the_branch_that_its_clone_is_on(
    context: WorkerContext, user: ApiUser, sandbox_id: str
) -> None:
    idle = first(context, user, sandbox_id, execution_status="finished")
    elsewhere = make_conversation(context.database, user, row(context, Sandbox, sandbox_id), working_dir="/other")
    found = started(context, request_start(context, user, sandbox_id, **REPOSITORY, selected_branch="dev"))
    assert (found.selected_branch, row(context, Conversation, idle.id).selected_branch) == ("dev", "dev")
    assert row(context, Conversation, elsewhere.id).selected_branch is None


@pytest.mark.usefixtures("server")
def test_child_of_a_conversation_on_a_former_branch_changes_no_other_s_branch(
    context: WorkerContext, user: ApiUser, sandbox_id: str
) -> None:
    parent, other = (first(context, user, sandbox_id, execution_status="finished") for _ in range(2))
    change(context, Conversation, parent.id, selected_branch="dev")
    found = started(context, request_start(context, user, sandbox_id, parent_conversation_id=parent.id))
    assert (found.selected_branch, row(context, Conversation, other.id).selected_branch) == ("feature/made",) * 2


def test_start_does_not_switch_the_branch_of_another_start(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    sandbox, request = row(context, Sandbox, sandbox_id), {**REPOSITORY, "selected_branch": "feature/made"}
    other = make_start_task(context.database, user, sandbox, stage=Stage.RUNNING_SETUP_SCRIPT, request=request)
    task_id = request_start(context, user, sandbox_id, **REPOSITORY, selected_branch="dev")
    start_conversation(context, task_id)
    assert_failed(context, task_id, Reason.CLONE_FAILED, f"{other.conversation_id} is using")
    assert switches(server) == []


@pytest.mark.usefixtures("server")
def test_start_with_another_repository_blocks_no_start(context: WorkerContext, user: ApiUser, sandbox_id: str) -> None:
    sandbox, request = row(context, Sandbox, sandbox_id), {"selected_repository": "acme/other"}
    make_start_task(context.database, user, sandbox, stage=Stage.RUNNING_SETUP_SCRIPT, request=request)
    assert started(context, request_start(context, user, sandbox_id, **REPOSITORY, selected_branch="dev")).listed


@pytest.mark.usefixtures("server")
def test_provider_that_has_the_repository_is_shown(context: WorkerContext, user: ApiUser, sandbox_id: str) -> None:
    found = started(context, request_start(context, user, sandbox_id, selected_repository="acme/app"))
    assert found.git_provider == "github"


def interrupt_at(context: WorkerContext, server: FakeAgentServer, task_id: str, stage: Stage) -> None:
    """Run a start until its agent server does not respond in a stage, for once."""

    def fail(_method: str) -> None:
        if row(context, StartTask, task_id).stage == stage:
            server.before = lambda _method: None
            raise httpx.ConnectError("refused")

    server.before = fail
    start_conversation(context, task_id)
    assert row(context, StartTask, task_id).stage == stage


@pytest.mark.parametrize("stage", [Stage.RUNNING_SETUP_SCRIPT, Stage.SETTING_UP_GIT_HOOKS])
def test_start_that_is_retried_after_its_clone_shows_branch_and_provider(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer, stage: Stage
) -> None:
    shown = {"selected_repository": "acme/app", "selected_branch": "dev"}
    parent = make_conversation(context.database, user, row(context, Sandbox, sandbox_id), **shown)
    task_id = request_start(context, user, sandbox_id, parent_conversation_id=parent.id)
    interrupt_at(context, server, task_id, stage)
    found = started(context, task_id)
    assert (found.selected_branch, found.git_provider) == ("feature/made", "github")


def test_start_that_is_retried_after_its_clone_was_removed_continues(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    task_id = request_start(context, user, sandbox_id, selected_repository="acme/app")
    interrupt_at(context, server, task_id, Stage.RUNNING_SETUP_SCRIPT)
    server.replies["echo cloned"] = Reply(1)
    assert started(context, task_id).listed


@pytest.mark.parametrize("stage", [None, Stage.RUNNING_SETUP_SCRIPT, Stage.STARTING_CONVERSATION])
def test_plan_path_follows_the_provider_of_the_repository(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer, stage: Stage | None
) -> None:
    with context.database.transaction() as session:
        secrets.put_provider_tokens(session, context.vault, user.id, {"gitlab": {"token": "the-token"}})
    server.replies = {"https://github.com/acme/app.git": Reply(1)} | server.replies
    task_id = request_start(context, user, sandbox_id, selected_repository="acme/app", agent_type="plan")
    if stage is not None:
        interrupt_at(context, server, task_id, stage)
    found = started(context, task_id)
    [editor] = [tool for tool in server.get(found.id).body["agent_settings"]["tools"] if "params" in tool]
    assert found.git_provider == "gitlab"
    assert editor["params"]["plan_path"] == f"{found.working_dir}/{paths.plan(found.git_provider)}"
