"""Events and other contents of webhooks."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.ids import new_id
from shared.models import Conversation
from tests.api.agent_reports import conversation_report
from tests.factories import ApiUser, make_event


def test_defect_44_title_comes_with_the_report(
    client: TestClient, user: ApiUser, conversation: Conversation, post: Callable[..., int]
) -> None:
    # Nothing listens at the sandbox's address, so a request to it for the title would fail.
    assert post("/conversations", conversation_report(conversation.id, after=1, title="A haiku about queues")) == 200
    found = client.get(f"/api/v1/app-conversations/{conversation.id}", headers=user.headers).json()
    assert found["title"] == "A haiku about queues"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/api/v1/conversation/{id}/events", "id"),
        ("/api/v1/app-conversations", "ids"),
        ("/api/v1/app-conversations/start-tasks", "ids"),
        ("/api/v1/sandboxes", "id"),
        ("/api/v1/sandbox-specs", "id"),
    ],
)
def test_defect_49_limits_are_as_documented(
    client: TestClient, database: Database, user: ApiUser, conversation: Conversation, path: str, name: str
) -> None:
    for _ in range(3):
        make_event(database, conversation)
    url = path.format(id=conversation.id)
    for number, status in ((1, 200), (100, 200), (101, 400)):
        params = {name: [new_id() for _ in range(number)]}
        assert client.get(url, params=params, headers=user.headers).status_code == status
    for limit, status in ((0, 422), (1, 200), (100, 200), (101, 422), (1000, 422)):
        response = client.get(f"{url}/search", params={"limit": limit}, headers=user.headers)
        assert response.status_code == status
        if status == 200:
            assert len(response.json()["items"]) <= limit
