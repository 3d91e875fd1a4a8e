"""Client errors of an agent server: the client gets their status and reason."""

import json
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Conversation
from shared.queue.jobs import DeliverMessages
from tests.api.agent_server.requests import send
from tests.doubles import RecordingPublisher
from tests.factories import NODE_ID, ApiUser, make_conversation, make_event, make_sandbox
from tests.fakes.scripted_agent import ScriptedAgent
from tests.rows import as_stored

BASH = "POST /api/bash/execute_bash_command"
DOWNLOAD = "GET /api/file/download"
FILE = "file?file_path=/workspace/a.txt"
MESSAGE = {"content": [{"type": "text", "text": "go on"}]}
REQUESTS = (
    ("GET", "git/changes?path=/workspace/project&ref=nope", None, "GET /api/git/changes"),
    ("GET", "git/diff?path=/workspace/project/nope", None, "GET /api/git/diff"),
    ("GET", FILE, None, DOWNLOAD),
    ("POST", "send-message", MESSAGE, "POST events"),
)


def script(agent: ScriptedAgent, conversation: Conversation, upstream: str, status: int, response: Any) -> None:
    upstream = upstream.replace(" events", f" /api/conversations/{UUID(conversation.id)}/events")
    agent.responses[upstream] = (status, json.dumps(response).encode())


@pytest.mark.parametrize(("method", "path", "body", "upstream"), REQUESTS)
@pytest.mark.parametrize(("upstream_status", "status"), [(400, 400), (409, 409), (413, 413), (422, 400)])
def test_client_error_of_the_agent_server_is_passed_on(
    client: TestClient,
    user: ApiUser,
    conversation: Conversation,
    agent: ScriptedAgent,
    method: str,
    path: str,
    body: Any,
    upstream: str,
    upstream_status: int,
    status: int,
) -> None:
    script(agent, conversation, upstream, upstream_status, {"detail": "this can't\n be done"})
    response = send(client, user, conversation, method, path, body)
    assert (response.status_code, response.json()["detail"]) == (status, "this can't be done")
    assert "Retry-After" not in response.headers


@pytest.mark.parametrize(("method", "path", "body", "upstream"), REQUESTS[:-1])
def test_request_to_a_busy_agent_server_is_retried(
    client: TestClient,
    user: ApiUser,
    conversation: Conversation,
    agent: ScriptedAgent,
    method: str,
    path: str,
    body: Any,
    upstream: str,
) -> None:
    script(agent, conversation, upstream, 429, {"detail": "later"})
    response = send(client, user, conversation, method, path, body)
    assert (response.status_code, response.json()["detail"], response.headers["Retry-After"]) == (429, "later", "1")


def test_message_to_an_agent_that_can_not_run_yet_is_not_retried(
    client: TestClient,
    user: ApiUser,
    conversation: Conversation,
    agent: ScriptedAgent,
    database: Database,
    publisher: RecordingPublisher,
) -> None:
    """The agent server has the message. A worker has the agent run, as for a pending message that has arrived."""
    script(agent, conversation, "POST events", 429, {"detail": "Message saved, but run capacity is full"})
    response = send(client, user, conversation, "POST", "send-message", MESSAGE)
    assert (response.status_code, response.json()["success"], "Retry-After" in response.headers) == (200, True, False)
    assert publisher.jobs == [DeliverMessages(conversation.id, NODE_ID)]
    assert as_stored(database, conversation).awaits_sandbox
    path = f"/api/v1/conversations/{conversation.id}/pending-messages"
    [waiting] = client.get(path, headers=user.headers).json()
    assert [part["text"] for part in waiting["content"]] == ["go on"]


@pytest.mark.parametrize(
    ("columns", "run", "status"),
    [
        ({"execution_status": "running"}, True, 200),
        ({"execution_status": "running"}, False, 502),
        ({"execution_status": "error"}, True, 502),
    ],
    ids=["running", "without a run", "failed"],
)
def test_message_to_an_agent_whose_tool_runs_is_not_retried(
    client: TestClient, user: ApiUser, database: Database, columns: dict[str, Any], run: bool, status: int
) -> None:
    """Until the tool has ended, the agent server does not respond. Then it takes the message."""
    nowhere = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:1", "port": 8000}]
    busy = make_conversation(database, user, make_sandbox(database, user, exposed_urls=nowhere), **columns)
    make_event(database, busy, kind="ActionEvent")
    assert send(client, user, busy, "POST", "send-message", MESSAGE | {"run": run}).status_code == status
    waiting = client.get(f"/api/v1/conversations/{busy.id}/pending-messages", headers=user.headers).json()
    assert len(waiting) == (status == 200)


@pytest.mark.parametrize("response", [{"detail": "half \ud800"}, {"detail": 1}, ["detail"], float("nan")])
def test_client_error_without_a_readable_reason_has_its_status(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent, response: Any
) -> None:
    script(agent, conversation, DOWNLOAD, 409, response)
    result = send(client, user, conversation, "GET", FILE)
    assert (result.status_code, result.json()["detail"]) == (409, "the agent server responded with 409")


@pytest.mark.parametrize(("method", "path", "body", "upstream"), REQUESTS)
def test_404_of_the_agent_server_is_a_404(
    client: TestClient,
    user: ApiUser,
    conversation: Conversation,
    agent: ScriptedAgent,
    method: str,
    path: str,
    body: Any,
    upstream: str,
) -> None:
    script(agent, conversation, upstream, 404, {"detail": "not there"})
    assert send(client, user, conversation, method, path, body).status_code == 404


@pytest.mark.parametrize(("method", "path", "body", "upstream"), REQUESTS)
@pytest.mark.parametrize("status", [401, 403, 418, 500, 503, 302])
def test_failure_of_the_agent_server_is_a_502(
    client: TestClient,
    user: ApiUser,
    conversation: Conversation,
    agent: ScriptedAgent,
    method: str,
    path: str,
    body: Any,
    upstream: str,
    status: int,
) -> None:
    script(agent, conversation, upstream, status, {"detail": "plain secret"})
    response = send(client, user, conversation, method, path, body)
    assert (response.status_code, str(status) in response.text, "plain" in response.text) == (502, True, False)


@pytest.mark.parametrize("response", [[], {}, {"detail": [{"msg": "x", "input": "plain"}]}, {"detail": ""}, None])
def test_client_error_without_a_reason_describes_its_status(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent, response: Any
) -> None:
    script(agent, conversation, "GET /api/git/diff", 400, response)
    result = send(client, user, conversation, "GET", "git/diff?path=/a")
    assert (result.status_code, result.json()["detail"]) == (400, "the agent server responded with 400")


@pytest.mark.parametrize(("exit_code", "status"), [(1, 400), (0, 502), (None, 502)])
def test_file_unreadable_for_the_sandbox_user_is_a_400(
    client: TestClient,
    user: ApiUser,
    conversation: Conversation,
    agent: ScriptedAgent,
    exit_code: int | None,
    status: int,
) -> None:
    agent.responses[DOWNLOAD] = (200, b"")
    agent.broken.add(DOWNLOAD)
    agent.responses[BASH] = (200, json.dumps({"exit_code": exit_code}).encode())
    response = send(client, user, conversation, "GET", "file?file_path=/etc/shad%27ow")
    assert (response.status_code, "read" in response.text) == (status, status == 400)
    assert agent.got[-1][4]["command"] == "test -r '/etc/shad'\"'\"'ow'"


@pytest.mark.parametrize("content", [b'[{"a": NaN}]', b'["\\ud800"]', b"[" * 101 + b"]" * 101])
def test_response_that_a_json_response_can_not_contain_is_a_502(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent, content: bytes
) -> None:
    agent.responses["GET /api/git/changes"] = (200, content)
    assert send(client, user, conversation, "GET", "git/changes?path=/a").status_code == 502
    agent.responses[BASH] = (200, b'{"exit_code": 0, "stdout": "\\ud800"}')
    assert send(client, user, conversation, "GET", "files").status_code == 502
