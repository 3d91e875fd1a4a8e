"""Sandboxes that a user started directly outlive their last conversation."""

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Sandbox
from shared.queue.jobs import DeleteConversation
from shared.states import Desired
from tests.doubles import RecordingPublisher
from tests.factories import ApiUser, make_conversation
from tests.rows import stored_row

API = "/api/v1"


def _delete_only_conversation(client: TestClient, user: ApiUser, database: Database, sandbox: Sandbox) -> Desired:
    conversation = make_conversation(database, user, sandbox)
    assert client.delete(f"{API}/app-conversations/{conversation.id}", headers=user.headers).status_code == 200
    return Desired(stored_row(database, Sandbox, sandbox.id).desired)


@pytest.mark.usefixtures("spec", "node")
def test_sandbox_started_directly_outlives_its_last_conversation(
    client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher
) -> None:
    made = client.post(f"{API}/sandboxes", headers=user.headers).json()
    sandbox = stored_row(database, Sandbox, made["id"])
    publisher.jobs.clear()
    for _ in range(2):
        assert _delete_only_conversation(client, user, database, sandbox) == Desired.RUNNING
    assert {type(job) for job in publisher.jobs} == {DeleteConversation}
    assert client.get(f"{API}/sandboxes/{sandbox.id}", headers=user.headers).status_code == 200


@pytest.mark.usefixtures("spec", "node", "model_key")
def test_sandbox_made_for_a_conversation_is_deleted_with_the_last_one(
    client: TestClient, user: ApiUser, database: Database
) -> None:
    task = client.post(f"{API}/app-conversations", json={}, headers=user.headers).json()
    cancelled = client.post(f"{API}/app-conversations/start-tasks/{task['id']}/cancel", headers=user.headers)
    assert cancelled.status_code == 200
    [made] = client.get(f"{API}/sandboxes/search", headers=user.headers).json()["items"]
    sandbox = stored_row(database, Sandbox, made["id"])
    assert _delete_only_conversation(client, user, database, sandbox) == Desired.DELETED
