"""Ids in paths and queries: equivalent spellings are accepted, and a malformed id is a 400."""

from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Conversation, Sandbox
from shared.states import Stage
from tests.factories import ApiUser, make_start_task, session_key_of

API = "/api/v1"
STARTS = f"{API}/app-conversations/start-tasks"
NAMED = [
    ("GET", "/app-conversations/{}"),
    ("GET", "/app-conversations?ids={}"),
    ("GET", "/app-conversations/search?sandbox_id__eq={}"),
    ("GET", "/app-conversations/count?sandbox_id__eq={}"),
    ("GET", "/app-conversations/{}/download"),
    ("PATCH", "/app-conversations/{}"),
    ("DELETE", "/app-conversations/{}"),
    ("GET", "/app-conversations/start-tasks/{}"),
    ("GET", "/app-conversations/start-tasks?ids={}"),
    ("GET", "/app-conversations/start-tasks/search?conversation_id__eq={}"),
    ("GET", "/app-conversations/start-tasks/count?conversation_id__eq={}"),
    ("POST", "/app-conversations/start-tasks/{}/cancel"),
    ("GET", "/conversation/{}/events/search"),
    ("GET", "/conversations/{}/pending-messages"),
    ("GET", "/conversations/task-{}/pending-messages"),
    ("GET", "/sandboxes/{}"),
    ("GET", "/sandboxes/{}/transitions"),
    ("PATCH", "/sandboxes/{}"),
    ("POST", "/sandboxes/{}/pause"),
    ("POST", "/sandboxes/{}/resume"),
    ("DELETE", "/sandboxes/{}"),
    ("GET", "/conversation/{}/events/count"),
    ("GET", "/conversation/{}/events?id=x"),
    ("POST", "/conversations/{}/pending-messages"),
    ("GET", "/app-conversations/{}/skills"),
    ("GET", "/app-conversations/{}/hooks"),
    ("POST", "/app-conversations/{}/switch_profile"),
    ("POST", "/app-conversations/{}/switch_acp_model"),
    ("POST", "/app-conversations/{}/send-message"),
    ("GET", "/app-conversations/{}/git/changes?path=x"),
    ("GET", "/app-conversations/{}/git/diff?path=x"),
    ("GET", "/app-conversations/{}/file?file_path=x"),
    ("GET", "/app-conversations/{}/files"),
]
# Paths without a version, or of V0.
OTHERS = [
    ("DELETE", "/keys/{}"),
    ("GET", "/conversations/{}"),
    ("PATCH", "/conversations/{}"),
    ("DELETE", "/conversations/{}"),
    ("POST", "/conversations/{}/start"),
    ("POST", "/conversations/{}/stop"),
    ("GET", "/conversations/{}/config"),
    ("GET", "/conversations/{}/vscode-url"),
    ("GET", "/conversations/{}/web-hosts"),
    ("POST", "/conversations/{}/message"),
    ("GET", "/conversations/{}/git/changes"),
    ("GET", "/conversations/{}/git/diff?path=x"),
    ("GET", "/conversations/{}/select-file?file=x"),
]
PATHS = [*((method, API + path) for method, path in NAMED), *((method, f"/api{path}") for method, path in OTHERS)]
MESSAGE: dict[str, object] = {"role": "user", "content": [{"type": "text", "text": "x"}]}
# Required bodies by the last segment of the path.
BODIES: dict[str, dict[str, object]] = {
    "pending-messages": MESSAGE,
    "send-message": MESSAGE,
    "message": {"message": "x"},
    "switch_profile": {"profile_name": "x"},
    "switch_acp_model": {"model": "x"},
}


@pytest.mark.parametrize(("method", "path"), PATHS)
def test_malformed_id_is_a_400_with_the_id(client: TestClient, user: ApiUser, method: str, path: str) -> None:
    body = BODIES.get(path.rpartition("/")[2], {})
    response = client.request(method, path.format("nonsense"), json=body, headers=user.headers)
    assert (response.status_code, "nonsense" in response.json()["detail"]) == (400, True), response.text
    # An unauthenticated caller does not learn what is wrong.
    assert client.request(method, path.format("nonsense"), json=body).status_code == 401


def test_malformed_id_hides_no_other_sandbox(client: TestClient, user: ApiUser, sandbox: Sandbox) -> None:
    """In V1, any text may be a sandbox's id, so a client may still know one of another service."""
    requested = ["oh-agent-server-1", sandbox.id, ""]
    response = client.get(f"{API}/sandboxes", params={"id": requested}, headers=user.headers)
    assert [item and item["id"] for item in response.json()] == [None, sandbox.id, None], response.text


def test_ids_with_dashes_and_capitals_are_accepted(
    client: TestClient, database: Database, user: ApiUser, sandbox: Sandbox, conversation: Conversation
) -> None:
    task = make_start_task(database, user, sandbox, stage=Stage.READY, conversation_id=conversation.id)
    for write in (str, lambda id_: id_.hex.upper()):
        own, box, start = (write(UUID(row.id)) for row in (conversation, sandbox, task))
        for path in (f"/app-conversations/{own}", f"/sandboxes/{box}", f"/app-conversations/start-tasks/{start}"):
            assert client.get(API + path, headers=user.headers).status_code == 200, path
        [found] = client.get(f"{API}/sandboxes", params={"id": box}, headers=user.headers).json()
        assert found["id"] == sandbox.id
        for name, path in (("sandbox_id__eq", f"{API}/app-conversations"), ("conversation_id__eq", STARTS)):
            params = {name: box if name == "sandbox_id__eq" else own}
            assert client.get(f"{path}/count", params=params, headers=user.headers).json() == 1
        key = {"X-Session-API-Key": session_key_of(sandbox)}
        assert client.get(f"{API}/sandboxes/{box}/settings/secrets", headers=key).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        f"{API}/app-conversations/search",
        f"{STARTS}/search",
        f"{API}/sandboxes/search",
        f"{API}/sandbox-specs/search",
        f"{API}/conversation/{'0' * 32}/events/search",
        "/api/conversations",
    ],
)
def test_empty_page_id_means_the_first_page(
    client: TestClient, user: ApiUser, conversation: Conversation, path: str
) -> None:
    empty = client.get(path.replace("0" * 32, conversation.id), params={"page_id": ""}, headers=user.headers)
    assert empty.status_code == 200, empty.text
    assert empty.json() == client.get(path.replace("0" * 32, conversation.id), headers=user.headers).json()
