"""A title that a user sets during a conversation's start is the conversation's title when it is READY."""

import pytest

from shared.conversations import start_tasks
from shared.states import Stage
from tests.factories import ApiUser
from tests.fakes.agent_server import FakeAgentServer
from tests.worker.scenarios import configure, conversation_of, request_start, running, task_of
from worker.context import WorkerContext
from worker.conversations.start import start_conversation


@pytest.fixture
def sandbox_id(context: WorkerContext, user: ApiUser) -> str:
    configure(context, user)
    return running(context, user)


def rename(context: WorkerContext, user: ApiUser, task_id: str) -> None:
    with context.database.transaction() as session:
        assert start_tasks.rename(session, task_of(context, task_id).conversation_id, user.id, "New")


@pytest.mark.parametrize("stage", [Stage.WORKING, Stage.PREPARING_REPOSITORY, Stage.STARTING_CONVERSATION])
@pytest.mark.parametrize("title", [None, "First"])
def test_title_set_during_a_start_is_the_conversations(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer, stage: Stage, title: str | None
) -> None:
    task_id = request_start(context, user, sandbox_id, title=title)

    def rename_at(_method: str) -> None:
        if task_of(context, task_id).stage == stage and task_of(context, task_id).request["title"] != "New":
            rename(context, user, task_id)

    server.before = rename_at
    if stage == Stage.WORKING:
        rename(context, user, task_id)
    start_conversation(context, task_id)
    conversation = conversation_of(context, task_id)
    assert conversation is not None
    assert (conversation.title, conversation.title_settled, conversation.listed) == ("New", True, True)


def test_title_longer_than_an_agent_server_takes_is_the_conversations(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    title = "t" * 500
    task_id = request_start(context, user, sandbox_id, title=title)
    start_conversation(context, task_id)
    task, conversation = task_of(context, task_id), conversation_of(context, task_id)
    assert (task.stage, task.detail) == (Stage.READY, None)
    assert conversation is not None
    assert (conversation.title, server.get(conversation.id).title) == (title, "t" * 200)


@pytest.mark.usefixtures("server")
def test_title_of_a_started_conversation_leaves_its_start_task_unchanged(
    context: WorkerContext, user: ApiUser, sandbox_id: str
) -> None:
    task_id = request_start(context, user, sandbox_id)
    start_conversation(context, task_id)
    with context.database.transaction() as session:
        assert not start_tasks.rename(session, task_of(context, task_id).conversation_id, user.id, "New")
    assert task_of(context, task_id).request.get("title") is None
