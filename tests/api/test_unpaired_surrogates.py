"""URLs of images with half of a surrogate pair: UTF-8 can't express it, so no response, and no message, could."""

import json

import pytest
from fastapi.testclient import TestClient

from shared.models import Conversation
from tests.api.agent_server.requests import PATH
from tests.api.responses import get_json
from tests.factories import ApiUser

JSON = {"Content-Type": "application/json"}
URLS = ["\ud800"]
MESSAGE = {"content": [{"type": "image", "image_urls": URLS}]}


@pytest.mark.usefixtures("spec", "node")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"initial_message": MESSAGE}),
        (f"{PATH}/stream-start", {"initial_message": MESSAGE}),
        (f"{PATH}/{{}}/send-message", MESSAGE),
        ("/api/v1/conversations/{}/pending-messages", MESSAGE),
        ("/api/conversations", {"image_urls": URLS}),
    ],
)
def test_are_refused_and_nothing_is_stored(
    client: TestClient, user: ApiUser, conversation: Conversation, path: str, body: object
) -> None:
    response = client.post(path.format(conversation.id), content=json.dumps(body), headers=user.headers | JSON)
    assert response.status_code == 422, response.text
    assert any("image_urls" in entry["loc"] and "surrogate" in entry["msg"] for entry in response.json()["detail"])
    assert get_json(PATH, client, user, "/start-tasks/search")["items"] == []
    assert get_json("/api/v1/conversations", client, user, f"/{conversation.id}/pending-messages") == []
