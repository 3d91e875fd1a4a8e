"""Pending messages: accepted for READY and for starting conversations, in order, up to a limit."""

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import col, select

from shared.conversations import pending_messages
from shared.conversations.pending_messages import MAX_PENDING, MAX_REFUSED
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Conversation, PendingMessage, Sandbox
from shared.queue.jobs import DeliverMessages
from shared.states import FINAL_STAGES, Stage, Status
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_conversation, make_sandbox, make_start_task
from tests.rows import as_stored

CONVERSATIONS = "/api/v1/app-conversations"


def path(conversation_id: str) -> str:
    return f"/api/v1/conversations/{conversation_id}/pending-messages"


def post_message(client: TestClient, user: ApiUser, conversation_id: str, text: str = "x", **headers: str) -> Any:
    body = {"role": "user", "content": [{"type": "text", "text": text}]}
    return client.post(path(conversation_id), json=body, headers=user.headers | headers)


def waiting(client: TestClient, user: ApiUser, conversation_id: str) -> list[str]:
    response = client.get(path(conversation_id), headers=user.headers)
    assert response.status_code == 200, response.text
    return [message["content"][0]["text"] for message in response.json()]


def refuse_next(database: Database, conversation: Conversation) -> None:
    """Record that the agent server rejects the next message, as the conversation's worker does."""
    with database.transaction() as session:
        message = pending_messages.find_next(session, conversation.id)
        assert message
        pending_messages.mark_refused(session, conversation, message, "422")


class TestMessagesOfAConversation:
    def test_defect_37_messages_are_stored_in_order_for_a_worker(
        self,
        client: TestClient,
        user: ApiUser,
        conversation: Conversation,
        database: Database,
        publisher: RecordingPublisher,
    ) -> None:
        responses = [post_message(client, user, conversation.id, text) for text in ("one", "two")]
        assert [response.status_code for response in responses] == [201, 201]
        assert [(response.json()["queued"], response.json()["position"]) for response in responses] == [
            (True, 1),
            (True, 2),
        ]
        assert waiting(client, user, conversation.id) == ["one", "two"]
        row = as_stored(database, conversation)
        assert row.awaits_sandbox
        assert row.due_at is not None
        assert publisher.jobs == [DeliverMessages(conversation.id, NODE_ID)] * 2

    @pytest.mark.parametrize("status", [Status.PAUSED, Status.ERROR, Status.STARTING])
    def test_messages_are_accepted_in_any_state_of_the_sandbox(
        self, client: TestClient, user: ApiUser, database: Database, status: Status
    ) -> None:
        conversation = make_conversation(database, user, make_sandbox(database, user, status=status))
        assert post_message(client, user, conversation.id).status_code == 201

    def test_messages_to_a_deleted_sandbox_are_refused(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        conversation = make_conversation(database, user, make_sandbox(database, user, status=Status.DELETED))
        assert post_message(client, user, conversation.id).status_code == 410

    def test_defect_41_messages_are_deleted_with_their_conversation(
        self, client: TestClient, user: ApiUser, conversation: Conversation, database: Database
    ) -> None:
        assert post_message(client, user, conversation.id).status_code == 201
        assert client.delete(f"{CONVERSATIONS}/{conversation.id}", headers=user.headers).status_code == 200
        with database.reading() as session:
            assert session.exec(select(PendingMessage)).all() == []
        assert post_message(client, user, conversation.id).status_code == 404
        assert client.get(path(conversation.id), headers=user.headers).status_code == 404


class TestMessagesOfAStart:
    @pytest.mark.parametrize("stage", [stage for stage in Stage if stage not in FINAL_STAGES])
    def test_messages_wait_for_a_start_under_either_id(
        self,
        client: TestClient,
        user: ApiUser,
        sandbox: Sandbox,
        database: Database,
        publisher: RecordingPublisher,
        stage: Stage,
    ) -> None:
        task = make_start_task(database, user, sandbox, stage=stage)
        if stage == Stage.STARTING_CONVERSATION:
            make_conversation(database, user, sandbox, id=task.conversation_id, listed=False)
        assert post_message(client, user, f"task-{task.id}", "one").json()["position"] == 1
        assert post_message(client, user, task.conversation_id, "two").json()["position"] == 2
        assert waiting(client, user, f"task-{task.id}") == waiting(client, user, task.conversation_id) == ["one", "two"]
        assert publisher.jobs == []

    def test_messages_to_a_ready_start_are_its_conversation_s(
        self, client: TestClient, user: ApiUser, sandbox: Sandbox, database: Database, publisher: RecordingPublisher
    ) -> None:
        task = make_start_task(database, user, sandbox, stage=Stage.READY)
        make_conversation(database, user, sandbox, id=task.conversation_id)
        assert post_message(client, user, f"task-{task.id}").status_code == 201
        assert publisher.jobs == [DeliverMessages(task.conversation_id, NODE_ID)]

    def test_messages_to_a_failed_start_are_refused(
        self, client: TestClient, user: ApiUser, sandbox: Sandbox, database: Database
    ) -> None:
        failed = make_start_task(database, user, sandbox, stage=Stage.ERROR)
        cancelled = make_start_task(database, user, sandbox)
        client.post(f"{CONVERSATIONS}/start-tasks/{cancelled.id}/cancel", headers=user.headers)
        for task in (failed, cancelled):
            assert post_message(client, user, f"task-{task.id}").status_code == 409


class TestLimit:
    def test_messages_over_the_limit_are_refused(
        self, client: TestClient, user: ApiUser, conversation: Conversation, database: Database
    ) -> None:
        for number in range(MAX_PENDING):
            assert post_message(client, user, conversation.id).json()["position"] == number + 1
        refused = post_message(client, user, conversation.id)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "5")
        assert str(MAX_PENDING) in refused.json()["detail"]
        with database.transaction() as session:
            first = session.exec(select(PendingMessage).order_by(col(PendingMessage.seq))).first()
            assert first
            first.refusal = "422"
        assert (
            post_message(client, user, conversation.id).json()["position"] == MAX_PENDING
        )  # a refused message is not pending any more

    def test_messages_and_their_limit_are_per_conversation(
        self, client: TestClient, user: ApiUser, sandbox: Sandbox, conversation: Conversation, database: Database
    ) -> None:
        other = make_conversation(database, user, sandbox)
        assert post_message(client, user, conversation.id).json()["position"] == 1
        assert post_message(client, user, other.id, "y").json()["position"] == 1
        assert waiting(client, user, conversation.id) == ["x"]
        assert client.delete(f"{CONVERSATIONS}/{conversation.id}", headers=user.headers).status_code == 200
        assert waiting(client, user, other.id) == ["y"]


class TestRefusedMessages:
    def test_newest_refused_messages_are_kept(
        self, client: TestClient, user: ApiUser, sandbox: Sandbox, conversation: Conversation, database: Database
    ) -> None:
        other = make_conversation(database, user, sandbox)
        post_message(client, user, other.id)
        for number in range(MAX_REFUSED + 2):
            assert post_message(client, user, conversation.id, str(number)).status_code == 201
            refuse_next(database, conversation)
        refuse_next(database, other)
        assert post_message(client, user, conversation.id, "waits").status_code == 201
        kept = [str(number) for number in range(2, MAX_REFUSED + 2)]
        assert waiting(client, user, conversation.id) == [*kept, "waits"]
        assert waiting(client, user, other.id) == ["x"]

    def test_list_has_a_limited_size(
        self,
        client: TestClient,
        user: ApiUser,
        conversation: Conversation,
        database: Database,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(pending_messages, "MAX_PAGE_BYTES", 2500)
        for letter in "abcd":
            assert post_message(client, user, conversation.id, letter * 1000).status_code == 201
        refuse_next(database, conversation)
        assert [text[0] for text in waiting(client, user, conversation.id)] == ["c", "d"]
        assert post_message(client, user, conversation.id, "e" * 3000).status_code == 201
        assert [text[0] for text in waiting(client, user, conversation.id)] == ["e"]

    def test_list_reads_a_limited_number_of_messages(
        self, client: TestClient, user: ApiUser, conversation: Conversation, database: Database
    ) -> None:
        row: dict[str, Any] = {
            "conversation_id": conversation.id,
            "content": [{"type": "text", "text": "old"}],
            "refusal": "422",
        }
        with database.transaction() as session:
            session.add_all(PendingMessage(**row) for _ in range(50))
        post_message(client, user, conversation.id, "waits")
        assert waiting(client, user, conversation.id) == ["old"] * 19 + ["waits"]


class TestErrors:
    @pytest.mark.parametrize(
        "body",
        [
            "nonsense",
            [],
            {},
            {"content": []},
            {"content": "text"},
            {"content": [{"type": "video"}]},
            {"role": "assistant", "content": [{"text": "x"}]},
        ],
    )
    def test_malformed_message_is_refused(
        self, client: TestClient, user: ApiUser, conversation: Conversation, body: Any
    ) -> None:
        assert client.post(path(conversation.id), json=body, headers=user.headers).status_code == 422

    @pytest.mark.parametrize(("wrong", "status"), [("nonsense", 400), ("task-nonsense", 400), ("task-", 400)])
    def test_malformed_id_is_refused(self, client: TestClient, user: ApiUser, wrong: str, status: int) -> None:
        assert post_message(client, user, wrong).status_code == status

    def test_defect_37_other_users_conversations_are_a_404(
        self,
        client: TestClient,
        user: ApiUser,
        other_user: ApiUser,
        sandbox: Sandbox,
        conversation: Conversation,
        database: Database,
    ) -> None:
        task = make_start_task(database, user, sandbox)
        make_conversation(database, other_user, make_sandbox(database, other_user))
        make_start_task(database, other_user)
        for subject in (conversation.id, task.conversation_id, f"task-{task.id}", new_id(), f"task-{new_id()}"):
            sent = post_message(client, other_user, subject)
            read = client.get(path(subject), headers=other_user.headers)
            assert (sent.status_code, read.status_code) == (404, 404)
            assert subject == task.conversation_id or task.conversation_id not in sent.text + read.text
        with database.reading() as session:
            assert session.exec(select(PendingMessage)).all() == []


def test_message_repeated_with_its_key_is_stored_once(
    client: TestClient, user: ApiUser, conversation: Conversation
) -> None:
    first, second = (post_message(client, user, conversation.id, **{"Idempotency-Key": "k"}) for _ in range(2))
    assert (first.status_code, first.json()) == (second.status_code, second.json()) == (201, first.json())
    assert waiting(client, user, conversation.id) == ["x"]
