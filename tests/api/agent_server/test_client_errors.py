"""Client errors of an agent server: the client gets their status and reason."""

import json
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from shared.models import Conversation
from tests.api.agent_server.requests import send
from tests.factories import ApiUser
from tests.fakes.scripted_agent import ScriptedAgent

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
@pytest.mark.parametrize(("upstream_status", "status"), [(400, 400), (409, 409), (413, 413), (422, 400), (429, 429)])
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
    assert ("Retry-After" in response.headers) == (status == 429)


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
