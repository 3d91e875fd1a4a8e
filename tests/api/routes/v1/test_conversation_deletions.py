"""DELETE of a conversation removes it immediately with its parts; its row describes the remaining work."""

from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from shared.clock import now
from shared.db.database import Database
from shared.ids import new_id
from shared.models import ChangeEntry, Conversation, Event, Sandbox, StartTask
from shared.queue.jobs import CancelStart, DeleteConversation, DeleteSandbox
from shared.states import FINAL_STAGES, Desired, Reason, Stage, Status
from tests.api.agent_reports import conversation_report, event_report, update_report
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_conversation, make_event, make_sandbox, make_start_task
from tests.rows import as_stored

PATH = "/api/v1/app-conversations"
Post = Callable[..., int]


def delete(client: TestClient, user: ApiUser, conversation_id: str) -> int:
    return int(client.delete(f"{PATH}/{conversation_id}", headers=user.headers).status_code)


def listed(client: TestClient, user: ApiUser, path: str = "/search", **params: Any) -> Any:
    response = client.get(PATH + path, params={"include_sub_conversations": True, **params}, headers=user.headers)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.fixture
def sibling(database: Database, user: ApiUser, sandbox: Sandbox) -> Conversation:
    """Another conversation in the same sandbox."""
    return make_conversation(database, user, sandbox)


class TestDeletion:
    def test_conversation_is_missing_immediately_in_all_operations(
        self, client: TestClient, user: ApiUser, conversation: Conversation, sibling: Conversation, database: Database
    ) -> None:
        make_event(database, conversation)
        listed(client, user)  # fills the response cache, which must not serve this list later
        assert delete(client, user, conversation.id) == 200
        assert [item["id"] for item in listed(client, user)["items"]] == [sibling.id]
        assert listed(client, user, "/count") == 1
        assert listed(client, user, ids=[conversation.id], path="") == [None]
        for path in ("", "/download", "/file", "/skills", "/hooks", "/git/changes?path=/"):
            assert client.get(f"{PATH}/{conversation.id}{path}", headers=user.headers).status_code == 404, path
        for path, body in (("/send-message", {"content": [{"text": "x"}]}), ("/switch_profile", {"profile_name": "p"})):
            response = client.post(f"{PATH}/{conversation.id}{path}", json=body, headers=user.headers)
            assert response.status_code == 404, path
        assert client.patch(f"{PATH}/{conversation.id}", json={}, headers=user.headers).status_code == 404
        events = f"/api/v1/conversation/{conversation.id}/events"
        assert client.get(f"{events}/count", headers=user.headers).json() == 0
        assert client.get(f"{events}/search", headers=user.headers).json()["items"] == []

    def test_events_are_deleted_and_the_remaining_work_is_stored(
        self,
        client: TestClient,
        user: ApiUser,
        sandbox: Sandbox,
        sibling: Conversation,
        database: Database,
        publisher: RecordingPublisher,
    ) -> None:
        private: dict[str, Any] = {
            "title": "private",
            "selected_repository": "private/private",
            "selected_branch": "private",
            "tags": {"private": "private"},
            "working_dir": "/private",
            "metrics": {"model_name": "private"},
            "execution_status": "running",
        }
        conversation = make_conversation(database, user, sandbox, **private)
        assert delete(client, user, conversation.id) == 200
        row = as_stored(database, conversation)
        assert "private" not in repr(row)
        assert row.due_at is not None  # the sweep enqueues it then if the message is lost
        assert (row.listed, row.awaits_sandbox, row.execution_status) == (False, True, None)
        assert publisher.jobs == [DeleteConversation(conversation.id, NODE_ID)]

    def test_start_task_is_deleted_with_its_conversation(
        self, client: TestClient, user: ApiUser, sandbox: Sandbox, conversation: Conversation, database: Database
    ) -> None:
        task = make_start_task(database, user, sandbox, stage=Stage.READY, conversation_id=conversation.id, due_at=None)
        assert delete(client, user, conversation.id) == 200
        assert listed(client, user, "/start-tasks/search")["items"] == []
        assert listed(client, user, "/start-tasks", ids=[task.id]) == [None]

    def test_deletion_is_in_the_change_log(
        self, client: TestClient, user: ApiUser, conversation: Conversation, sibling: Conversation, database: Database
    ) -> None:
        assert delete(client, user, conversation.id) == 200
        with database.reading() as session:
            entries = session.exec(select(ChangeEntry).where(ChangeEntry.row_id == conversation.id)).all()
        assert [(entry.owner_id, entry.kind, entry.status) for entry in entries] == [
            (user.id, "conversation", "deleting")
        ]

    def test_id_of_a_deleted_conversation_is_not_reused(
        self, client: TestClient, user: ApiUser, conversation: Conversation, sibling: Conversation
    ) -> None:
        assert delete(client, user, conversation.id) == 200
        body = {"conversation_id": conversation.id}
        assert client.post(PATH, json=body, headers=user.headers).status_code == 409


class TestPermission:
    def test_second_deletion_is_idempotent(
        self,
        client: TestClient,
        user: ApiUser,
        conversation: Conversation,
        sibling: Conversation,
        database: Database,
        publisher: RecordingPublisher,
    ) -> None:
        assert delete(client, user, conversation.id) == 200
        before, jobs = as_stored(database, conversation), list(publisher.jobs)
        assert delete(client, user, conversation.id) == 200
        assert (as_stored(database, conversation), publisher.jobs) == (before, jobs)

    def test_deletion_by_another_user_is_a_404(
        self, client: TestClient, user: ApiUser, other_user: ApiUser, conversation: Conversation, database: Database
    ) -> None:
        assert delete(client, other_user, conversation.id) == 404
        assert as_stored(database, conversation).deleted_at is None
        assert delete(client, user, conversation.id) == 200
        assert delete(client, other_user, conversation.id) == 404

    def test_unknown_or_malformed_id_is_refused(self, client: TestClient, user: ApiUser) -> None:
        assert delete(client, user, new_id()) == 404
        assert delete(client, user, "nonsense") == 400


class TestSubConversations:
    def test_sub_conversations_of_the_owner_are_deleted_with_their_parent(
        self,
        client: TestClient,
        user: ApiUser,
        other_user: ApiUser,
        sandbox: Sandbox,
        conversation: Conversation,
        sibling: Conversation,
        database: Database,
    ) -> None:
        child = make_conversation(database, user, sandbox, parent_id=conversation.id)
        grandchild = make_conversation(database, user, make_sandbox(database, user), parent_id=child.id)
        theirs = make_conversation(database, other_user, make_sandbox(database, other_user), parent_id=conversation.id)
        assert delete(client, user, conversation.id) == 200
        assert [item["id"] for item in listed(client, user)["items"]] == [sibling.id]
        assert all(as_stored(database, row).deleted_at for row in (conversation, child, grandchild))
        assert as_stored(database, theirs).deleted_at is None

    def test_cycle_is_deleted(self, client: TestClient, user: ApiUser, sandbox: Sandbox, database: Database) -> None:
        first, second = new_id(), new_id()
        make_conversation(database, user, sandbox, id=first, parent_id=second)
        make_conversation(database, user, sandbox, id=second, parent_id=first)
        assert delete(client, user, first) == 200
        assert listed(client, user)["items"] == []

    def test_sub_conversations_being_started_are_cancelled(
        self,
        client: TestClient,
        user: ApiUser,
        sandbox: Sandbox,
        conversation: Conversation,
        sibling: Conversation,
        database: Database,
        publisher: RecordingPublisher,
    ) -> None:
        child, other = (
            make_start_task(database, user, sandbox, request={"parent_conversation_id": parent.id})
            for parent in (conversation, sibling)
        )
        assert delete(client, user, conversation.id) == 200
        with database.reading() as session:
            assert session.get_one(StartTask, child.id).cancelled_at is not None
            assert session.get_one(StartTask, other.id).cancelled_at is None
        assert CancelStart(child.id, NODE_ID) in publisher.jobs


class TestSandbox:
    def test_sandbox_is_deleted_with_its_last_conversation(
        self,
        client: TestClient,
        user: ApiUser,
        sandbox: Sandbox,
        conversation: Conversation,
        sibling: Conversation,
        database: Database,
        publisher: RecordingPublisher,
    ) -> None:
        assert delete(client, user, conversation.id) == 200
        assert as_stored(database, sandbox).desired == Desired.RUNNING
        assert delete(client, user, sibling.id) == 200
        gone = as_stored(database, sandbox)
        assert (gone.desired, gone.generation) == (Desired.DELETED, sandbox.generation + 1)
        assert publisher.jobs[-1] == DeleteSandbox(sandbox.id, NODE_ID)

    def test_defect_42_sandbox_of_a_child_is_kept_for_other_conversations(
        self, client: TestClient, user: ApiUser, conversation: Conversation, database: Database
    ) -> None:
        shared, own = make_sandbox(database, user), make_sandbox(database, user)
        for place in (shared, own):
            make_conversation(database, user, place, parent_id=conversation.id)
        make_conversation(database, user, shared)
        assert delete(client, user, conversation.id) == 200
        assert as_stored(database, shared).desired == Desired.RUNNING
        assert as_stored(database, own).desired == Desired.DELETED

    def test_sandbox_is_kept_for_a_start_in_progress(
        self, client: TestClient, user: ApiUser, sandbox: Sandbox, conversation: Conversation, database: Database
    ) -> None:
        task = make_start_task(database, user, sandbox)
        assert delete(client, user, conversation.id) == 200
        assert as_stored(database, sandbox).desired == Desired.RUNNING
        with database.reading() as session:
            assert session.get_one(StartTask, task.id).cancelled_at is None

    @pytest.mark.parametrize("status", [Status.PAUSED, Status.ERROR, Status.DELETED])
    def test_conversation_is_deleted_in_any_state_of_its_sandbox(
        self, client: TestClient, user: ApiUser, database: Database, status: Status
    ) -> None:
        sandbox = make_sandbox(database, user, status=status, node_id=None if status == Status.DELETED else NODE_ID)
        conversation = make_conversation(database, user, sandbox)
        assert delete(client, user, conversation.id) == 200
        assert as_stored(database, sandbox).desired == Desired.DELETED
        assert as_stored(database, conversation).deleted_at is not None


class TestReports:
    def test_reports_are_accepted_and_restore_nothing(
        self,
        client: TestClient,
        user: ApiUser,
        sandbox: Sandbox,
        conversation: Conversation,
        sibling: Conversation,
        database: Database,
        post: Post,
    ) -> None:
        assert delete(client, user, conversation.id) == 200
        before = as_stored(database, conversation)
        assert post("/conversations", conversation_report(conversation.id, title="again", tags={"a": "b"})) == 200
        events = [event_report(), update_report("execution_status", "running")]
        assert post(f"/events/{conversation.id}", events) == 200
        assert as_stored(database, conversation) == before
        with database.reading() as session:
            assert session.exec(select(Event)).all() == []
        assert [item["id"] for item in listed(client, user)["items"]] == [sibling.id]

    def test_late_reports_do_not_restore_the_conversation(
        self, client: TestClient, user: ApiUser, conversation: Conversation, sibling: Conversation, post: Post
    ) -> None:
        assert post(f"/events/{conversation.id}", [event_report()]) == 200
        assert delete(client, user, conversation.id) == 200
        assert post("/conversations", conversation_report(conversation.id, execution_status="deleting")) == 200
        assert listed(client, user, "/count") == 1


class TestUnfinishedStart:
    @pytest.mark.parametrize("stage", [stage for stage in Stage if stage not in FINAL_STAGES])
    def test_deletion_cancels_an_unfinished_start(
        self,
        client: TestClient,
        user: ApiUser,
        other_user: ApiUser,
        sandbox: Sandbox,
        database: Database,
        publisher: RecordingPublisher,
        stage: Stage,
    ) -> None:
        task = make_start_task(database, user, sandbox, stage=stage, due_at=None)
        if stage == Stage.STARTING_CONVERSATION:
            make_conversation(database, user, sandbox, id=task.conversation_id, listed=False)
        assert delete(client, other_user, task.conversation_id) == 404
        for _ in range(2):
            assert delete(client, user, task.conversation_id) == 200
        with database.reading() as session:
            row = session.get_one(StartTask, task.id)
        assert row.cancelled_at is not None
        assert row.due_at is not None
        assert publisher.jobs[0] == CancelStart(task.id, NODE_ID)

    def test_start_that_has_failed_is_a_404(
        self, client: TestClient, user: ApiUser, sandbox: Sandbox, database: Database
    ) -> None:
        task = make_start_task(database, user, sandbox, stage=Stage.ERROR, reason=Reason.CLONE_FAILED)
        assert delete(client, user, task.conversation_id) == 404
        cancelled = make_start_task(
            database, user, sandbox, stage=Stage.ERROR, reason=Reason.CANCELLED, cancelled_at=now()
        )
        assert delete(client, user, cancelled.conversation_id) == 200
