"""Skills, hooks and the LLM of a running conversation."""

import json
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Conversation
from shared.states import Status
from tests.api.agent_server.requests import send
from tests.factories import ApiUser, make_conversation, make_sandbox
from tests.fakes.scripted_agent import ScriptedAgent
from tests.rows import as_stored

FAST = {"model": "openai/o3", "api_key": "fast-plain", "temperature": 0.5}


def script(agent: ScriptedAgent, path: str, document: Any, status: int = 200) -> None:
    agent.responses[f"POST {path}"] = (status, json.dumps(document).encode())


def test_skills_of_the_project_are_listed(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent
) -> None:
    skill = {"name": "s", "type": "knowledge", "content": "text", "triggers": ["t"], "source": None}
    script(agent, "/api/skills", {"skills": [skill], "sources": {"project": 1}})
    response = send(client, user, conversation, "GET", "skills")
    del skill["source"]
    assert (response.status_code, response.json()) == (200, {"skills": [skill]})
    [(method, _, _, _, body)] = agent.got
    assert (method, body["project_dir"], body["load_public"]) == ("POST", conversation.working_dir, False)


def test_disabled_skills_are_not_listed(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent
) -> None:
    skills: list[dict[str, Any]] = [
        {"name": name, "type": "knowledge", "content": "text", "triggers": []} for name in ("docker", "house")
    ]
    script(agent, "/api/skills", {"skills": skills})
    client.post("/api/v1/settings", json={"disabled_skills": ["docker", "unknown"]}, headers=user.headers)
    assert send(client, user, conversation, "GET", "skills").json() == {"skills": skills[1:]}


def test_hooks_of_the_project_are_listed(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent
) -> None:
    matcher = {"matcher": "terminal", "hooks": [{"type": "command", "command": "lint", "async": True}]}
    script(agent, "/api/hooks", {"hook_config": {"pre_tool_use": [matcher], "stop": []}})
    response = send(client, user, conversation, "GET", "hooks")
    full = {"type": "command", "command": "lint", "timeout": 60, "async": True}
    assert response.json() == {
        "hooks": [{"event_type": "pre_tool_use", "matchers": [{"matcher": "terminal", "hooks": [full]}]}]
    }
    assert agent.got[0][4] == {"project_dir": conversation.working_dir}
    script(agent, "/api/hooks", {"hook_config": None})
    assert send(client, user, conversation, "GET", "hooks").json() == {"hooks": []}


@pytest.mark.parametrize("what", ["skills", "hooks"])
def test_paused_sandbox_has_an_empty_list_and_others_an_error(
    client: TestClient, database: Database, user: ApiUser, what: str
) -> None:
    for status, expected in ((Status.PAUSED, 200), (Status.STARTING, 409), (Status.DELETED, 404)):
        conversation = make_conversation(database, user, make_sandbox(database, user, status=status))
        response = send(client, user, conversation, "GET", what)
        assert response.status_code == expected
        assert response.json() == {what: []} if expected == 200 else response.json()["detail"]


@pytest.mark.parametrize("what", ["skills", "hooks"])
@pytest.mark.parametrize(
    "response", [None, [], {}, {"skills": 1, "hook_config": 1}, {"skills": [1], "hook_config": [1]}]
)
def test_invalid_response_is_a_502(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent, what: str, response: Any
) -> None:
    script(agent, f"/api/{what}", response)
    assert send(client, user, conversation, "GET", what).status_code == 502


@pytest.fixture
def saved_settings(client: TestClient, user: ApiUser) -> None:
    for name, llm in (("fast", FAST), ("keyless", {"model": "openai/o3"})):
        body = {"llm": llm}
        path = f"/api/v1/settings/profiles/{name}"
        assert client.post(path, json=body, headers=user.headers).status_code == 201


def switch(client: TestClient, user: ApiUser, conversation: Conversation, name: str) -> Any:
    return send(client, user, conversation, "POST", "switch_profile", {"profile_name": name})


@pytest.mark.usefixtures("saved_settings")
def test_profile_switch_sends_its_llm(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent, database: Database
) -> None:
    path = f"/api/conversations/{UUID(conversation.id)}/switch_llm"
    script(agent, path, {"success": True})
    response = switch(client, user, conversation, "fast")
    assert (response.status_code, response.json()) == (200, {"success": True})
    sent = agent.got[0][4]["llm"]
    assert sent == FAST | {"usage_id": sent["usage_id"], "stream": True}
    assert sent["usage_id"].startswith("profile:fast:")
    assert as_stored(database, conversation).llm_model == FAST["model"]
    # A changed profile needs a new usage id, or the agent server reuses the old LLM.
    switch(client, user, conversation, "fast")
    body = {"llm": FAST | {"api_key": "other-plain"}}
    client.post("/api/v1/settings/profiles/fast", json=body, headers=user.headers)
    switch(client, user, conversation, "fast")
    ids = [got[4]["llm"]["usage_id"] for got in agent.got]
    assert (ids[0] == ids[1], ids[1] == ids[2]) == (True, False)


@pytest.mark.usefixtures("saved_settings")
def test_profile_without_a_key_uses_the_users_current_key(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent
) -> None:
    client.post("/api/v1/settings", json={"llm_api_key": "own-plain"}, headers=user.headers)
    script(agent, f"/api/conversations/{UUID(conversation.id)}/switch_llm", {})
    assert switch(client, user, conversation, "keyless").status_code == 200
    assert agent.got[0][4]["llm"]["api_key"] == "own-plain"


def test_key_is_sent_to_no_other_server(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent
) -> None:
    script(agent, f"/api/conversations/{UUID(conversation.id)}/switch_llm", {})
    sent = []
    for name, own, other in (
        ("a", "", "http://other.test"),
        ("b", "http://own.test", "http://other.test"),
        ("c", "", ""),
    ):
        client.post("/api/settings", json={"llm_api_key": "own", "llm_base_url": own}, headers=user.headers)
        body = {"llm": {"model": "m", "base_url": other}}
        client.post(f"/api/v1/settings/profiles/{name}", json=body, headers=user.headers)
        assert switch(client, user, conversation, name).status_code == 200
        sent.append(agent.got[-1][4]["llm"].get("api_key"))
    assert sent == [None, None, "own"]


@pytest.mark.parametrize(
    ("model", "key"),
    [("openai/o1", "own"), ("openai/ft/o1", "own"), ("anthropic/claude", None), ("o1", None), (None, "own")],
)
@pytest.mark.usefixtures("saved_settings")
def test_key_is_sent_to_no_other_provider(
    client: TestClient,
    user: ApiUser,
    conversation: Conversation,
    agent: ScriptedAgent,
    model: str | None,
    key: str | None,
) -> None:
    """Without base URLs, the name of a model says which provider gets the key."""
    script(agent, f"/api/conversations/{UUID(conversation.id)}/switch_llm", {})
    client.post("/api/settings", json={"llm_api_key": "own", "llm_model": model}, headers=user.headers)
    assert switch(client, user, conversation, "keyless").status_code == 200
    assert agent.got[-1][4]["llm"].get("api_key") == key


@pytest.mark.parametrize(("model", "key"), [("gpt-4o-mini", "own"), ("claude-sonnet-4-5", None)])
def test_key_is_sent_to_no_model_of_another_name(
    client: TestClient, user: ApiUser, conversation: Conversation, agent: ScriptedAgent, model: str, key: str | None
) -> None:
    """The agent server chooses the provider of a model whose name has none."""
    script(agent, f"/api/conversations/{UUID(conversation.id)}/switch_llm", {})
    client.post("/api/settings", json={"llm_api_key": "own", "llm_model": "gpt-4o"}, headers=user.headers)
    client.post("/api/v1/settings/profiles/bare", json={"llm": {"model": model}}, headers=user.headers)
    assert switch(client, user, conversation, "bare").status_code == 200
    assert agent.got[-1][4]["llm"].get("api_key") == key


@pytest.mark.usefixtures("saved_settings")
def test_impossible_switch_is_rejected(
    client: TestClient,
    database: Database,
    user: ApiUser,
    other_user: ApiUser,
    conversation: Conversation,
    agent: ScriptedAgent,
) -> None:
    script(agent, f"/api/conversations/{UUID(conversation.id)}/switch_llm", {"detail": "fast-plain"}, 500)
    rejected = switch(client, user, conversation, "fast")
    assert (rejected.status_code, "plain" in rejected.text) == (502, False)
    assert as_stored(database, conversation).llm_model is None
    assert switch(client, user, conversation, "unknown").status_code == 404
    assert switch(client, other_user, conversation, "fast").status_code == 404
    for body in ({}, {"profile_name": ""}, {"profile_name": "a/b"}, {"profile_name": 1}):
        assert send(client, user, conversation, "POST", "switch_profile", body).status_code == 422
    paused = make_conversation(database, user, make_sandbox(database, user, status=Status.PAUSED))
    assert switch(client, user, paused, "fast").status_code == 409


@pytest.mark.parametrize(
    ("upstream_status", "response", "status", "words"),
    [
        (200, {"success": True}, 200, ""),
        (400, {"detail": "Agent is not\nACP"}, 400, "Agent is not ACP"),
        (400, [], 400, "not an ACP agent"),
        (504, {"detail": "no answer in time"}, 504, "no answer in time"),
        (504, {"detail": [{"msg": "x"}]}, 504, "does not respond"),
        (404, {"detail": "Not Found"}, 502, "404"),
        (422, {"detail": []}, 502, "422"),
        (500, {"detail": "internal"}, 502, "500"),
    ],
)
def test_acp_agent_switches_its_model(
    client: TestClient,
    user: ApiUser,
    conversation: Conversation,
    agent: ScriptedAgent,
    database: Database,
    upstream_status: int,
    response: object,
    status: int,
    words: str,
) -> None:
    path = f"/api/conversations/{UUID(conversation.id)}/switch_acp_model"
    script(agent, path, response, upstream_status)
    result = send(client, user, conversation, "POST", "switch_acp_model", {"model": "opus"})
    assert result.status_code == status
    assert words in result.text
    assert agent.got[0][4] == {"model": "opus"}
    assert as_stored(database, conversation).llm_model == ("opus" if status == 200 else None)


def test_model_switch_without_a_running_agent_is_rejected(
    client: TestClient, user: ApiUser, other_user: ApiUser, conversation: Conversation, database: Database
) -> None:
    body = {"model": "opus"}
    assert send(client, other_user, conversation, "POST", "switch_acp_model", body).status_code == 404
    assert send(client, user, conversation, "POST", "switch_acp_model", {"model": ""}).status_code == 422
    assert send(client, user, conversation, "POST", "switch_acp_model", {}).status_code == 422
    for status, expected in ((Status.PAUSED, 409), (Status.STARTING, 409), (Status.DELETED, 404)):
        other = make_conversation(database, user, make_sandbox(database, user, status=status))
        assert send(client, user, other, "POST", "switch_acp_model", body).status_code == expected, status
