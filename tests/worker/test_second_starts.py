"""A start in a sandbox where its repository is cloned already: the branch that it shows is the one that it is on."""

import pytest

from shared.models import Conversation, Sandbox, StartTask
from shared.states import Reason
from tests.factories import Person, make_conversation
from tests.fakes.agent_server import FakeAgentServer, Reply
from tests.fakes.engine import FakeEngine
from tests.worker.scenes import ask, assert_failed, configure, row, running, server_of
from worker.parts import Parts
from worker.starts import start_conversation

REPOSITORY = {"selected_repository": "acme/app", "git_provider": "github"}


@pytest.fixture
def sandbox_id(parts: Parts, user: Person) -> str:
    configure(parts, user)
    return running(parts, user)


@pytest.fixture
def server(engine: FakeEngine, sandbox_id: str) -> FakeAgentServer:
    """Its agent server; the clone is on a branch that an agent has made."""
    server = server_of(engine, sandbox_id)
    server.replies["echo cloned"] = Reply(0, "cloned\nfeature/made\n")
    return server


def started(parts: Parts, task_id: str) -> Conversation:
    start_conversation(parts, task_id)
    return row(parts, Conversation, row(parts, StartTask, task_id).conversation_id)


def test_a_branch_that_is_asked_for_is_checked_out(
    parts: Parts, user: Person, sandbox_id: str, server: FakeAgentServer
) -> None:
    found = started(parts, ask(parts, user, sandbox_id, **REPOSITORY, selected_branch="dev"))
    assert found.selected_branch == "dev"
    assert any("git checkout" in command.text and "branch=dev" in command.text for command in server.commands)


def test_a_branch_that_can_not_be_had_ends_the_start(
    parts: Parts, user: Person, sandbox_id: str, server: FakeAgentServer
) -> None:
    server.replies["git checkout"] = Reply(1, None, "couldn't find remote ref refs/heads/nope")
    task_id = ask(parts, user, sandbox_id, **REPOSITORY, selected_branch="nope")
    start_conversation(parts, task_id)
    assert_failed(parts, task_id, Reason.CLONE_FAILED)
    assert "refs/heads/nope" in str(row(parts, StartTask, task_id).detail)


@pytest.mark.usefixtures("server")
def test_a_sub_conversation_shows_the_branch_that_it_is_on(parts: Parts, user: Person, sandbox_id: str) -> None:
    sandbox = row(parts, Sandbox, sandbox_id)
    parent = make_conversation(parts.database, user, sandbox, **REPOSITORY, selected_branch="dev")
    found = started(parts, ask(parts, user, sandbox_id, parent_conversation_id=parent.id))
    assert (found.selected_repository, found.selected_branch) == ("acme/app", "feature/made")
