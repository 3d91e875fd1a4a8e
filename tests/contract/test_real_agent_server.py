"""Requests of the API to the real agent server in its image, and the effect of V1's settings there."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

from deploy.demo.scripted_model import ScriptedModel
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Conversation, Sandbox
from shared.states import Desired
from shared.users import settings_store
from tests.factories import DOOR, VAULT, ApiUser, make_conversation, make_sandbox
from tests.rows import as_stored
from tests.services.agent_servers import FOLDER, HELLO, KEY, TargetServer, body_for
from tests.waiting import eventually
from worker.agent_server.client import AgentServer
from worker.agent_server.transport import open_client

PATH = "/api/v1/app-conversations"
# A value for every setting of an agent, except those that would be fetched from the internet.
LLM = {
    "auth_type": "api_key",
    "api_version": "v1",
    "aws_access_key_id": "a",
    "aws_secret_access_key": "b",
    "aws_session_token": "c",
    "aws_region_name": "eu-1",
    "aws_profile_name": "p",
    "aws_role_name": "r",
    "aws_session_name": "s",
    "aws_bedrock_runtime_endpoint": "https://bedrock.example.com",
    "openrouter_site_url": "https://example.com",
    "openrouter_app_name": "Agent Workspace",
    "num_retries": 2,
    "retry_multiplier": 1.5,
    "retry_min_wait": 1,
    "retry_max_wait": 2,
    "timeout": 60,
    "stream_idle_timeout": 30.0,
    "max_message_chars": 10_000,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "max_input_tokens": 100_000,
    "max_output_tokens": 1000,
    "model_canonical_name": "openai/gpt-4o",
    "api_mode": "chat",
    "capability_overrides": {"supports_vision": False, "thinking_mode": "manual"},
    "extra_headers": {"X-Team": "blue"},
    "input_cost_per_token": 0.001,
    "output_cost_per_token": 0.002,
    "ollama_base_url": "http://ollama.example.com",
    "stream": False,
    "drop_params": True,
    "modify_params": True,
    "disable_vision": True,
    "disable_stop_word": False,
    "caching_prompt": False,
    "native_tool_calling": True,
    "force_string_serializer": False,
    "inline_image_urls": False,
    "reasoning_effort": "low",
    "reasoning_summary": "auto",
    "enable_encrypted_reasoning": False,
    "prompt_cache_retention": "24h",
    "extended_thinking_budget": 1000,
    "seed": 7,
    "litellm_extra_body": {"user": "x"},
}
SETTINGS = {
    "agent_kind": "openhands",
    "agent": "CodeActAgent",
    "llm": LLM,
    "condenser": {
        "enabled": True,
        "max_size": 100,
        "condenser_kind": "llm_summarizing",
        "max_tokens": 50_000,
        "keep_first": 4,
        "minimum_progress": 0.2,
        "hard_context_reset_max_retries": 2,
        "hard_context_reset_context_scaling": 0.5,
    },
    "verification": {
        "critic_enabled": False,
        "critic_mode": "all_actions",
        "enable_iterative_refinement": False,
        "critic_threshold": 0.5,
        "max_refinement_iterations": 2,
        "critic_server_url": "https://critic.example.com",
        "critic_model_name": "critic",
        "critic_api_key": "k",
    },
    "mcp_config": {
        "docs": {"url": "http://127.0.0.1:9/mcp", "headers": {"X-Key": "h"}, "auth": "t", "timeout": 5},
        "news": {"url": "http://127.0.0.1:9/sse", "transport": "sse"},
        "files": {"command": "true", "args": ["-y"], "env": {"A": "b"}},
    },
    "tool_concurrency_limit": 2,
}

Ask = Callable[..., Any]


@pytest.fixture
def sandbox(database: Database, user: ApiUser, sandbox_url: str) -> Sandbox:
    """The row of the real sandbox."""
    urls = [{"name": "AGENT_SERVER", "url": sandbox_url, "port": 8000}]
    key: dict[str, Any] = {"session_key": VAULT.encrypt(KEY), "session_key_digest": VAULT.digest(KEY)}
    return make_sandbox(database, user, exposed_urls=urls, **key)


@pytest.fixture
def target(sandbox_url: str) -> Iterator[TargetServer]:
    """The real agent server."""
    with open_client(DOOR) as client:
        yield TargetServer("real", sandbox_url, client)


@pytest.fixture
def server(target: TargetServer) -> AgentServer:
    """A worker's client of the agent server."""
    return target.server


@pytest.fixture
def send(client: TestClient, user: ApiUser) -> Ask:
    """Return a function that calls the API and returns the document of a successful response."""

    def send(method: str, path: str, body: Any = None, /, **params: Any) -> Any:
        response = client.request(method, path, json=body, params=params, headers=user.headers)
        assert response.is_success, response.text
        return response.json()

    return send


@pytest.fixture
def conversation(
    database: Database,
    user: ApiUser,
    sandbox: Sandbox,
    server: AgentServer,
    contract_model: Any,
) -> Conversation:
    """A conversation without messages."""
    row_id = new_id()
    row = make_conversation(database, user, sandbox, id=row_id, working_dir=f"{FOLDER}/{row_id}")
    server.create_conversation(body_for(contract_model, conversation_id=row_id, llm_model="openai/quick"))
    return row


def test_all_settings_are_accepted(
    database: Database,
    user: ApiUser,
    sandbox_url: str,
    contract_model: Any,
    send: Ask,
) -> None:
    send("POST", "/api/v1/settings", {"agent_settings_diff": SETTINGS})
    with database.reading() as session:
        stored = settings_store.load(session, VAULT, user.id)
    assert stored is not None
    body = body_for(
        contract_model, agent_settings=stored.agent_settings, mcp_config=stored.mcp_config, condenser_max_size=100
    )
    with httpx.Client(timeout=60) as client:
        made = client.post(f"{sandbox_url}/api/conversations", headers={"X-Session-API-Key": KEY}, json=body)
    assert made.status_code == 201, made.text
    agent = made.json()["agent"]
    assert agent["llm"].items() >= {"temperature": 0.5, "seed": 7, "num_retries": 2, "usage_id": "agent"}.items()


def test_files_and_changes_are_returned(server: AgentServer, conversation: Conversation, send: Ask) -> None:
    folder = conversation.working_dir
    commands = (
        f"mkdir -p {folder} && cd {folder} && git init -q . && git config user.email a@b && git config user.name a",
        f"cd {folder} && echo one > a.txt && git add . && git commit -qm one && echo two > a.txt && echo new > b.txt",
    )
    for command in commands:
        assert server.run_command(command).exit_code == 0
    base = f"{PATH}/{conversation.id}"
    assert send("GET", f"{base}/file", file_path=f"{folder}/a.txt") == "two\n"
    changes = send("GET", f"{base}/git/changes", path=folder)
    assert {change["path"]: change["status"] for change in changes} == {"a.txt": "UPDATED", "b.txt": "ADDED"}
    diff = send("GET", f"{base}/git/diff", path=f"{folder}/a.txt")
    assert (diff["original"].strip(), diff["modified"].strip()) == ("one", "two")


def test_missing_file_is_not_found(client: TestClient, user: ApiUser, conversation: Conversation) -> None:
    path = f"{PATH}/{conversation.id}/file"
    response = client.get(path, params={"file_path": f"{FOLDER}/nothing"}, headers=user.headers)
    assert (response.status_code, "nothing" in response.json()["detail"]) == (404, True)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("file?file_path=/etc", "not a file"),
        ("file?file_path=/dev/zero", "not a file"),
        ("file?file_path=/etc/shadow", "may not read"),
        ("git/diff?path=nothing", "nothing"),
        ("git/changes?path=.&ref=nothing", "nothing"),
    ],
)
def test_invalid_path_or_ref_is_a_400_with_the_reason(
    client: TestClient, user: ApiUser, server: AgentServer, conversation: Conversation, path: str, words: str
) -> None:
    folder = conversation.working_dir
    assert server.run_command(f"mkdir -p {folder} && git -C {folder} init --quiet").exit_code == 0
    response = client.get(f"{PATH}/{conversation.id}/{path}", headers=user.headers)
    assert (response.status_code, words in response.json()["detail"]) == (400, True), response.text


def test_listed_names_can_be_requested(server: AgentServer, conversation: Conversation, send: Ask) -> None:
    folder = f"{conversation.working_dir}/src"
    assert server.run_command(f"mkdir -p {folder} && echo one >{folder}/a.txt").exit_code == 0
    base = f"{PATH}/{conversation.id}"
    assert send("GET", f"{base}/files") == ["src/a.txt"]
    assert send("GET", f"{base}/file", file_path="src/a.txt") == "one\n"
    assert send("GET", f"{base}/files", path="src") == ["a.txt"]


def test_skills_and_hooks_are_listed(server: AgentServer, conversation: Conversation, send: Ask) -> None:
    skill = "---\\nname: house\\ntriggers:\\n- paint\\n---\\nUse blue."
    hook = '{"pre_tool_use": [{"matcher": "terminal", "hooks": [{"type": "command", "command": "true"}]}]}'
    folder = f"{conversation.working_dir}/.openhands"
    command = f"mkdir -p {folder}/skills && printf -- '{skill}' > {folder}/skills/house.md"
    assert server.run_command(f"{command} && echo '{hook}' > {folder}/hooks.json").exit_code == 0
    base = f"{PATH}/{conversation.id}"
    [found] = [one for one in send("GET", f"{base}/skills")["skills"] if one["name"] == "house"]
    assert (found["triggers"], found["content"]) == (["paint"], "Use blue.")
    [event] = send("GET", f"{base}/hooks")["hooks"]
    assert (event["event_type"], event["matchers"][0]["hooks"][0]["command"]) == ("pre_tool_use", "true")


def test_message_and_profile_switch_are_accepted(
    target: TargetServer,
    server: AgentServer,
    conversation: Conversation,
    contract_model: Any,
    send: Ask,
) -> None:
    llm = {"model": "openai/quick", "api_key": "sk-2", "base_url": contract_model.base_url, "temperature": 0.1}
    send("POST", "/api/v1/settings/profiles/quick", {"llm": llm})
    assert send("POST", f"{PATH}/{conversation.id}/switch_profile", {"profile_name": "quick"}) == {"success": True}
    message = {"content": [{"type": "text", "text": "Hello"}], "run": False}
    assert send("POST", f"{PATH}/{conversation.id}/send-message", message)["success"] is True
    said = [event for event in target.list_events(conversation.id) if event["kind"] == "MessageEvent"]
    assert [event["source"] for event in said] == ["user"]
    known = server.get_conversation(conversation.id)
    assert known
    assert known["agent"]["llm"]["temperature"] == 0.1


def test_openhands_agent_can_not_switch_to_an_acp_model(
    client: TestClient, database: Database, user: ApiUser, server: AgentServer, conversation: Conversation
) -> None:
    path = f"{PATH}/{conversation.id}/switch_acp_model"
    response = client.post(path, json={"model": "opus"}, headers=user.headers)
    assert (response.status_code, "ACP" in response.json()["detail"]) == (400, True)
    assert as_stored(database, conversation).llm_model is None
    known = server.get_conversation(conversation.id)
    assert known
    assert known["agent"]["llm"]["model"] == "openai/quick"


def test_unknown_conversation_can_not_switch_to_another_model(
    client: TestClient, database: Database, user: ApiUser, sandbox: Sandbox
) -> None:
    unknown = make_conversation(database, user, sandbox)
    response = client.post(f"{PATH}/{unknown.id}/switch_acp_model", json={"model": "opus"}, headers=user.headers)
    assert (response.status_code, "404" in response.json()["detail"]) == (502, True)


def test_stop_in_the_web_ui_interrupts_each_run_and_pauses_without_one(
    client: TestClient,
    database: Database,
    user: ApiUser,
    sandbox: Sandbox,
    server: AgentServer,
    contract_model: ScriptedModel,
) -> None:
    client.headers["Origin"] = "http://testserver"
    assert client.post("/login", data={"api_key": user.key}, follow_redirects=False).status_code == 303
    runs = [new_id() for _ in range(2)]
    for run in runs:
        server.create_conversation(body_for(contract_model, conversation_id=run, initial_message=HELLO))
    eventually(lambda: set(runs) <= {found.replace("-", "") for found in server.find_running()})
    stop = f"/api/v1/sandboxes/{sandbox.id}/pause"
    assert client.post(stop).status_code == 200
    assert as_stored(database, sandbox).desired == Desired.RUNNING
    eventually(lambda: {(server.get_conversation(run) or {})["execution_status"] for run in runs} == {"paused"})
    eventually(lambda: server.find_running() == [])
    assert client.post(stop).status_code == 200
    assert as_stored(database, sandbox).desired == Desired.PAUSED
