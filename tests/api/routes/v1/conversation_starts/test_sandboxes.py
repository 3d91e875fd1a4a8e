"""A start in an existing sandbox, and one with a parent."""

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from shared.db.database import Database
from shared.ids import new_id
from shared.models import Sandbox, StartTask
from shared.queue.jobs import ResumeSandbox, StartConversation
from shared.states import Desired, Status
from tests.api.routes.v1.conversation_starts.requests import _all_sandboxes, _start, _status, _task
from tests.doubles import RecordingPublisher
from tests.factories import (
    ApiUser,
    make_conversation,
    make_sandbox,
)


class TestStartInASandbox:
    def test_start_in_a_running_sandbox_joins_it(
        self, client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher
    ) -> None:
        sandbox = make_sandbox(database, user)
        task = _task(database, _start(client, user, sandbox_id=sandbox.id)["id"])
        assert (task.sandbox_id, task.made_sandbox) == (sandbox.id, False)
        assert publisher.jobs == [StartConversation(task.id, sandbox.node_id)]
        [kept] = _all_sandboxes(database)
        assert kept.generation == sandbox.generation

    @pytest.mark.parametrize(("status", "desired"), [(Status.PAUSED, Desired.PAUSED), (Status.RUNNING, Desired.PAUSED)])
    def test_start_in_a_paused_sandbox_resumes_it(
        self,
        client: TestClient,
        user: ApiUser,
        database: Database,
        publisher: RecordingPublisher,
        status: Status,
        desired: Desired,
    ) -> None:
        sandbox = make_sandbox(database, user, status=status, desired=desired)
        shown = _start(client, user, sandbox_id=sandbox.id)
        [woken] = _all_sandboxes(database)
        assert (woken.desired, woken.generation) == (Desired.RUNNING, sandbox.generation + 1)
        assert woken.due_at is not None
        assert publisher.jobs == [
            ResumeSandbox(sandbox.id, sandbox.node_id),
            StartConversation(shown["id"], sandbox.node_id),
        ]

    def test_start_in_an_unusable_sandbox_is_refused(
        self, client: TestClient, user: ApiUser, other_user: ApiUser, database: Database
    ) -> None:
        failed = make_sandbox(database, user, status=Status.ERROR)
        deleted = make_sandbox(database, user, status=Status.DELETED)
        theirs = make_sandbox(database, other_user)
        assert _status(client, user, sandbox_id=failed.id) == 400
        for sandbox_id in (deleted.id, theirs.id, new_id()):
            assert _status(client, user, sandbox_id=sandbox_id) == 404
        with database.reading() as session:
            assert session.exec(select(StartTask)).all() == []


class TestParent:
    def test_unset_fields_are_inherited_from_the_parent(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        sandbox = make_sandbox(database, user)
        parent = make_conversation(
            database,
            user,
            sandbox,
            selected_repository="o/r",
            selected_branch="main",
            git_provider="github",
            llm_model="openai/parent",
        )
        inherited = {
            "sandbox_id": sandbox.id,
            "selected_repository": "o/r",
            "selected_branch": "main",
            "git_provider": "github",
            "llm_model": "openai/parent",
            "parent_conversation_id": parent.id,
        }
        request = _start(client, user, parent_conversation_id=parent.id)["request"]
        assert inherited.items() <= request.items()
        request = _start(
            client, user, parent_conversation_id=parent.id, selected_repository="o/other", llm_model="openai/mine"
        )["request"]
        assert request["selected_branch"] is None  # the branch belongs to another repository
        assert request["llm_model"] == "openai/mine"

    @pytest.mark.parametrize("branch", ["a b", "-x", "b" * 400], ids=("space", "option", "long"))
    def test_branch_that_a_sandbox_reported_is_inherited(
        self, client: TestClient, database: Database, user: ApiUser, sandbox: Sandbox, branch: str
    ) -> None:
        parent = make_conversation(database, user, sandbox, selected_repository="o/r", selected_branch=branch)
        task = _start(client, user, parent_conversation_id=parent.id)
        assert task["request"]["selected_branch"] == branch

    def test_unknown_parent_is_a_404(
        self, client: TestClient, user: ApiUser, other_user: ApiUser, sandbox: Sandbox, database: Database
    ) -> None:
        theirs = make_conversation(database, other_user, make_sandbox(database, other_user))
        unlisted = make_conversation(database, user, sandbox, listed=False)
        for parent_id in (new_id(), theirs.id, unlisted.id):
            assert _status(client, user, parent_conversation_id=parent_id) == 404
            assert _status(client, user, parent_conversation_id=parent_id, sandbox_id=sandbox.id) == 404
        assert _status(client, user, parent_conversation_id="nonsense") == 422
