"""DELETE of a conversation with more descendants than one transaction deletes."""

import pytest
from fastapi.testclient import TestClient
from sqlmodel import col, func, select

from api.routes.v1 import conversations as routes
from shared.conversations import deletion
from shared.db.database import Database, StoreTimeout
from shared.models import Conversation, Sandbox
from shared.queue.jobs import DeleteConversation
from shared.states import Desired
from tests.doubles import RecordingPublisher
from tests.factories import ApiUser, make_conversation
from tests.rows import as_stored

CHILDREN = 2 * deletion.MAX_TARGETS + 20


@pytest.fixture
def parent(database: Database, user: ApiUser, sandbox: Sandbox) -> Conversation:
    """A conversation with many sub-conversations, one of which has its own, in a sandbox that was made for it."""
    with database.transaction() as session:
        session.get_one(Sandbox, sandbox.id).goes_with_conversations = True
    parent = make_conversation(database, user, sandbox)
    for _ in range(CHILDREN - 1):
        child = make_conversation(database, user, sandbox, parent_id=parent.id)
    make_conversation(database, user, sandbox, parent_id=child.id)
    return parent


def delete(client: TestClient, user: ApiUser, conversation: Conversation) -> int:
    return int(client.delete(f"/api/v1/app-conversations/{conversation.id}", headers=user.headers).status_code)


def count_listed(database: Database) -> int:
    with database.reading() as session:
        return session.exec(select(func.count()).select_from(Conversation).where(col(Conversation.listed))).one()


def test_request_deletes_all_descendants(
    client: TestClient,
    database: Database,
    user: ApiUser,
    sandbox: Sandbox,
    parent: Conversation,
    publisher: RecordingPublisher,
) -> None:
    assert delete(client, user, parent) == 200
    assert count_listed(database) == 0
    assert as_stored(database, sandbox).desired == Desired.DELETED
    assert sum(isinstance(job, DeleteConversation) for job in publisher.jobs) == 1 + CHILDREN


def test_request_deletes_a_limited_number(
    client: TestClient, database: Database, user: ApiUser, parent: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MAX_DELETIONS", 2)
    assert delete(client, user, parent) == 200
    assert count_listed(database) == 1 + CHILDREN - 2 * deletion.MAX_TARGETS


def test_stored_delete_is_acknowledged_although_the_database_fails_later(
    client: TestClient,
    database: Database,
    user: ApiUser,
    parent: Conversation,
    publisher: RecordingPublisher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise StoreTimeout

    monkeypatch.setattr(deletion, "delete_children", fail)
    assert delete(client, user, parent) == 200
    assert count_listed(database) == 1 + CHILDREN - deletion.MAX_TARGETS
    assert len(publisher.jobs) == deletion.MAX_TARGETS
