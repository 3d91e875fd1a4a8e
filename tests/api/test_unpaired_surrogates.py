"""URLs of images with half of a surrogate pair: UTF-8 can't express it, so no response, and no message, could."""

import json

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Conversation, PendingMessage
from tests.api.agent_server.requests import PATH
from tests.api.responses import get_json
from tests.factories import ApiUser, make_sandbox, make_spec, make_start_task

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


def test_stored_by_an_earlier_version_are_shown_replaced(client: TestClient, database: Database, user: ApiUser) -> None:
    make_spec(database, "own:1", env={"A": "a\udcff"}, command=["serve", "\udcff"])
    sandbox = make_sandbox(database, user)
    message = {"content": [{"type": "image", "image_urls": ["a\ud800b\U0001f600"]}]}
    task = make_start_task(database, user, sandbox, request={"initial_message": message})
    with database.transaction() as session:
        session.add(PendingMessage(conversation_id=task.conversation_id, content=message["content"]))
    starts = f"{PATH}/start-tasks"
    tasks = [*get_json(starts, client, user, "/search")["items"], *get_json(starts, client, user, ids=task.id)]
    tasks.append(get_json(starts, client, user, f"/{task.id}"))
    [waiting] = get_json("/api/v1/conversations", client, user, f"/{task.conversation_id}/pending-messages")
    for content in (waiting["content"], *(shown["request"]["initial_message"]["content"] for shown in tasks)):
        assert content[0]["image_urls"] == ["a?b\U0001f600"]
    assert get_json("/api/conversations", client, user)["results"][0]["conversation_id"] == task.conversation_id
    assert get_json("/api/conversations", client, user, f"/{task.conversation_id}")["status"] == "STARTING"
    specs = get_json("/api/v1/sandbox-specs", client, user, "/search")["items"]
    assert [(spec["initial_env"], spec["command"]) for spec in specs if spec["id"] == "own:1"] == [
        ({"A": "a?"}, ["serve", "?"])
    ]
    assert client.post(f"{starts}/{task.id}/cancel", headers=user.headers).status_code == 200
