"""Requests to a conversation's agent server: messages, files and changes; and the errors without a response."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from api.agent_server import client as agent_server_client
from api.routes.v1.conversation_workspace import _list_command
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Conversation, Sandbox
from shared.states import Status
from tests.api.agent_server.requests import PATH, send
from tests.factories import ApiUser, make_conversation, make_sandbox, session_key_of
from tests.fakes.scripted_agent import ScriptedAgent

BASH = "/api/bash/execute_bash_command"
MESSAGE = {"content": [{"type": "text", "text": "go on"}]}
REQUESTS = (
    ("GET", "git/changes?path=/workspace/project", None),
    ("GET", "git/diff?path=/workspace/project/a.py", None),
    ("GET", "file?file_path=/workspace/a.txt", None),
    ("GET", "files?path=/workspace/project", None),
    ("POST", "send-message", MESSAGE),
)


@pytest.mark.parametrize(
    ("what", "query", "passed_on"),
    [
        ("changes", "path=/workspace/project", {"path": ["/workspace/project"]}),
        ("diff", "path=/a%20b.py&ref=HEAD~1", {"path": ["/a b.py"], "ref": ["HEAD~1"]}),
    ],
)
def test_git_response_is_passed_on(
    client: TestClient,
    user: ApiUser,
    sandbox: Sandbox,
    conversation: Conversation,
    agent: ScriptedAgent,
    what: str,
    query: str,
    passed_on: dict[str, list[str]],
) -> None:
    changes: Any = [{"status": "ADDED", "path": "a.py"}] if what == "changes" else {"modified": "a", "original": None}
    agent.responses[f"GET /api/git/{what}"] = (200, json.dumps(changes).encode())
    response = send(client, user, conversation, "GET", f"git/{what}?{query}")
    assert (response.status_code, response.json()) == (200, changes)
    [(method, path, params, key, _)] = agent.got
    assert (method, path, parse_qs(params)) == ("GET", f"/api/git/{what}", passed_on)
    assert key == session_key_of(sandbox)


def test_defect_38_file_is_returned_or_its_error(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent
) -> None:
    for content, status in (("héllo\n".encode(), 200), (b"", 200), (b"\xff\xfe", 400)):
        agent.responses["GET /api/file/download"] = (200, content)
        response = send(client, user, conversation, "GET", "file?file_path=/workspace/a.txt")
        assert response.status_code == status
        assert response.json() == content.decode() if status == 200 else response.json()["detail"]
    agent.responses.clear()
    response = send(client, user, conversation, "GET", "file?file_path=/workspace/a.txt")
    assert (response.status_code, "/workspace/a.txt" in response.json()["detail"]) == (404, True)


def test_large_file_is_streamed(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent
) -> None:
    text = "\x01é🦊\n" * 100_000
    agent.responses["GET /api/file/download"] = (200, text.encode())
    response = send(client, user, conversation, "GET", "file")
    assert (response.status_code, response.json()) == (200, text)
    assert "Content-Length" not in response.headers


def script_listing(agent: ScriptedAgent, **result: object) -> None:
    agent.responses[f"POST {BASH}"] = (200, json.dumps(result).encode())


@pytest.mark.parametrize(("query", "folder"), [("?path=/a%20b'c", "'/a b'\"'\"'c'"), ("", "/workspace/project/app")])
def test_files_are_relative_paths(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent, query: str, folder: str
) -> None:
    agent.responses[f"POST {BASH}"] = (
        200,
        json.dumps({"exit_code": 0, "stdout": "./src/a.py\n./README.md\n./ b\n"}).encode(),
    )
    response = send(client, user, conversation, "GET", f"files{query}")
    assert (response.status_code, response.json()) == (200, [" b", "README.md", "src/a.py"])
    assert agent.got[0][4]["command"].startswith(f"cd -- {folder} && find . ")
    script_listing(agent, exit_code=0, stdout=None)
    assert send(client, user, conversation, "GET", f"files{query}").json() == []
    agent.responses[f"POST {BASH}"] = (
        200,
        json.dumps({"exit_code": 1, "stdout": "", "stderr": "no such folder"}).encode(),
    )
    missing = send(client, user, conversation, "GET", f"files{query}")
    assert missing.status_code == 404
    assert missing.json()["detail"].startswith("no folder with path ")
    agent.responses[f"POST {BASH}"] = (200, b"[]")
    assert send(client, user, conversation, "GET", f"files{query}").status_code == 502


def test_listing_that_timed_out_is_a_502(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent
) -> None:
    """The folder may exist: a 404 would be untrue."""
    script_listing(agent, exit_code=-1, stdout="./a.py\n")
    assert send(client, user, conversation, "GET", "files").status_code == 502


@pytest.mark.parametrize(
    ("path", "absolute"),
    [("src/a b", "/workspace/project/app/src/a b"), ("-x", "/workspace/project/app/-x"), ("/etc/x", "/etc/x")],
)
def test_relative_paths_are_resolved_against_the_project_folder(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent, path: str, absolute: str
) -> None:
    v0 = f"/api/conversations/{conversation.id}"
    for requested in (
        f"{PATH}/{conversation.id}/file?file_path={path}",
        f"{PATH}/{conversation.id}/git/changes?path={path}",
        f"{PATH}/{conversation.id}/git/diff?path={path}",
        f"{v0}/git/diff?path={path}",
        f"{v0}/select-file?file={path}",
    ):
        client.get(requested, headers=user.headers)
        assert parse_qs(agent.got[-1][2]) == {"path": [absolute]}, requested
    script_listing(agent, exit_code=0, stdout=None)
    send(client, user, conversation, "GET", f"files?path={path}")
    assert agent.got[-1][4]["command"].startswith(f"cd -- {shlex.quote(absolute)} && find . ")


def test_list_command_omits_generated_files(tmp_path: Path) -> None:
    for name in ("a b.txt", "src/x.py", ".git/HEAD", "web/node_modules/y.js", ".venv/bin/python", ".hidden"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    listed = subprocess.run(["sh", "-c", _list_command(str(tmp_path))], capture_output=True, check=True, text=True)
    assert sorted(listed.stdout.splitlines()) == ["./.hidden", "./a b.txt", "./link", "./src/x.py"]
    assert subprocess.run(["sh", "-c", _list_command("/nowhere")], capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize(("provider", "folder"), [(None, ".agents_tmp"), ("gitlab", "agents-tmp-config")])
def test_defect_38_default_file_is_the_plan(
    client: TestClient,
    database: Database,
    user: ApiUser,
    sandbox: Sandbox,
    agent: ScriptedAgent,
    provider: str | None,
    folder: str,
) -> None:
    planned = make_conversation(database, user, sandbox, working_dir="/workspace/x", git_provider=provider)
    agent.responses["GET /api/file/download"] = (200, b"# Plan")
    assert send(client, user, planned, "GET", "file").json() == "# Plan"
    assert parse_qs(agent.got[0][2]) == {"path": [f"/workspace/x/{folder}/PLAN.md"]}


def test_message_is_passed_on(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent
) -> None:
    path = f"/api/conversations/{UUID(conversation.id)}/events"
    agent.responses[f"POST {path}"] = (200, b'{"success": true}')
    response = send(client, user, conversation, "POST", "send-message", MESSAGE)
    assert (response.status_code, response.json()) == (
        200,
        {"success": True, "sandbox_status": "RUNNING", "message": None},
    )
    assert send(client, user, conversation, "POST", "send-message", MESSAGE | {"run": False}).status_code == 200
    text = {"type": "text", "text": "go on", "cache_prompt": False}
    assert [(one[1], one[4]) for one in agent.got] == [
        (path, {"role": "user", "content": [text], "run": run}) for run in (True, False)
    ]


@pytest.mark.parametrize("body", [{}, {"content": []}, {"content": "x"}, MESSAGE | {"role": "system"}, []])
def test_invalid_message_is_rejected(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent, body: Any
) -> None:
    assert send(client, user, conversation, "POST", "send-message", body).status_code == 422
    assert agent.got == []


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_failing_agent_server_is_a_502(
    client: TestClient,
    database: Database,
    user: ApiUser,
    conversation: Conversation,
    agent: ScriptedAgent,
    method: str,
    path: str,
    body: Any,
) -> None:
    event = f"POST /api/conversations/{UUID(conversation.id)}/events"
    for requested in ("GET /api/git/changes", "GET /api/git/diff", "GET /api/file/download", f"POST {BASH}", event):
        agent.responses[requested] = (500, b"plain secret")
    response = send(client, user, conversation, method, path, body)
    assert (response.status_code, "500" in response.json()["detail"], "plain" in response.text) == (502, True, False)
    nowhere = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:1", "port": 8000}]
    lost = make_conversation(database, user, make_sandbox(database, user, exposed_urls=nowhere))
    response = send(client, user, lost, method, path, body)
    assert (response.status_code, "its node's door does not respond" in response.json()["detail"]) == (502, True)


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_sandbox_that_is_not_running_gets_no_request(
    client: TestClient, database: Database, user: ApiUser, method: str, path: str, body: Any
) -> None:
    sent = path == "send-message"
    for status, expected in (
        (Status.STARTING, 409),
        (Status.PAUSED, 409),
        (Status.ERROR, 503 if sent else 409),
        (Status.DELETED, 410 if sent else 404),
    ):
        sandbox = make_sandbox(database, user, status=status)
        response = send(client, user, make_conversation(database, user, sandbox), method, path, body)
        assert response.status_code == expected, status
        if status == Status.PAUSED:
            assert f"/api/v1/sandboxes/{sandbox.id}/resume" in response.json()["detail"]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
def test_another_user_s_conversation_is_a_404(
    client: TestClient,
    user: ApiUser,
    other_user: ApiUser,
    conversation: Conversation,
    agent: ScriptedAgent,
    method: str,
    path: str,
    body: Any,
) -> None:
    assert send(client, other_user, conversation, method, path, body).status_code == 404
    for one, status in ((new_id(), 404), ("nonsense", 400)):
        response = client.request(method, f"{PATH}/{one}/{path}", json=body, headers=user.headers)
        assert response.status_code == status
    assert agent.got == []


def test_endless_response_is_a_413(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_server_client, "MAX_DOWNLOAD_BYTES", 10)
    agent.responses["GET /api/file/download"] = (200, b"x" * 11)
    assert send(client, user, conversation, "GET", "file?file_path=/a").status_code == 413


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 20_000])
def test_response_that_is_not_json_is_a_502(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent, content: bytes
) -> None:
    agent.responses["GET /api/git/changes"] = (200, content)
    assert send(client, user, conversation, "GET", "git/changes?path=/a").status_code == 502
