"""A title that is given while a conversation is being started is the conversation's when it is READY."""

import pytest

from shared.states import Stage
from shared.store import start_tasks
from tests.factories import Person
from tests.fakes.agent_server import FakeAgentServer
from tests.worker.scenes import ask, configure, conversation_of, running, task_of
from worker.parts import Parts
from worker.starts import start_conversation


@pytest.fixture
def sandbox_id(parts: Parts, user: Person) -> str:
    configure(parts, user)
    return running(parts, user)


def rename(parts: Parts, user: Person, task_id: str) -> None:
    with parts.database.transaction() as session:
        assert start_tasks.rename(session, task_of(parts, task_id).conversation_id, user.id, "New")


@pytest.mark.parametrize("stage", [Stage.WORKING, Stage.PREPARING_REPOSITORY, Stage.STARTING_CONVERSATION])
@pytest.mark.parametrize("title", [None, "First"])
def test_title_given_in_the_midst_of_a_start_is_the_conversations(
    parts: Parts, user: Person, sandbox_id: str, server: FakeAgentServer, stage: Stage, title: str | None
) -> None:
    task_id = ask(parts, user, sandbox_id, title=title)

    def rename_at(_method: str) -> None:
        if task_of(parts, task_id).stage == stage and task_of(parts, task_id).request["title"] != "New":
            rename(parts, user, task_id)

    server.before = rename_at
    if stage == Stage.WORKING:
        rename(parts, user, task_id)
    start_conversation(parts, task_id)
    conversation = conversation_of(parts, task_id)
    assert conversation is not None
    assert (conversation.title, conversation.title_settled, conversation.listed) == ("New", True, True)


@pytest.mark.usefixtures("server")
def test_title_of_a_started_conversation_is_not_its_tasks_any_more(parts: Parts, user: Person, sandbox_id: str) -> None:
    task_id = ask(parts, user, sandbox_id)
    start_conversation(parts, task_id)
    with parts.database.transaction() as session:
        assert not start_tasks.rename(session, task_of(parts, task_id).conversation_id, user.id, "New")
    assert task_of(parts, task_id).request.get("title") is None
