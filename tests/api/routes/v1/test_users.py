"""GET /api/v1/users/me and git-info: the caller and the caller's settings; secrets only with a sandbox's key."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import Sandbox
from shared.states import Desired, Status
from tests.factories import ApiUser, make_sandbox, session_key_of

ME = "/api/v1/users/me"
EXPOSED = f"{ME}?expose_secrets=true"
MASK = "**********"
SERVERS = {
    "docs": {"url": "https://docs.example.com/mcp", "auth": "mcp-plain"},
    "files": {"command": "npx", "env": {"TOKEN": "env-plain"}},
}
SETTINGS: dict[str, Any] = {
    "search_api_key": "search-plain",
    "agent_settings_diff": {
        "llm": {
            "model": "openai/gpt-4o",
            "api_key": "llm-plain",
            "base_url": "https://llm.example.com",
            "aws_session_token": "aws-plain",
        },
        "mcp_config": SERVERS,
    },
}


@pytest.fixture
def saved_settings(client: TestClient, user: ApiUser) -> None:
    for path, body, status in (
        ("/api/v1/settings", SETTINGS, 200),
        ("/api/v1/settings/profiles/fast", {"llm": {"model": "m", "api_key": "profile-plain"}}, 201),
        ("/api/v1/secrets", {"name": "A", "value": "secret-plain"}, 201),
    ):
        assert client.post(path, json=body, headers=user.headers).status_code == status, path


def both_keys(user: ApiUser, sandbox: Sandbox) -> dict[str, str]:
    return user.headers | {"X-Session-API-Key": session_key_of(sandbox)}


def test_me_of_a_new_user_has_the_defaults(client: TestClient, user: ApiUser) -> None:
    found = client.get(ME, headers=user.headers).json()
    assert (found["id"], found["name"], found["llm_model"], found["llm_api_key_set"]) == (user.id, "alice", None, False)
    assert found["agent_settings"]["agent"] == "CodeActAgent"


@pytest.mark.usefixtures("saved_settings")
def test_me_has_both_shapes_and_no_secret(client: TestClient, user: ApiUser) -> None:
    response = client.get(ME, headers=user.headers)
    settings = client.get("/api/v1/settings", headers=user.headers).json()
    assert "plain" not in response.text
    assert response.json() == settings | {"id": user.id, "name": "alice"}
    assert response.json()["llm_model"] == response.json()["agent_settings"]["llm"]["model"] == "openai/gpt-4o"


@pytest.mark.usefixtures("saved_settings")
def test_secrets_are_exposed_with_a_running_sandbox_s_key(client: TestClient, user: ApiUser, sandbox: Sandbox) -> None:
    response = client.get(EXPOSED, headers=both_keys(user, sandbox))
    assert response.status_code == 200
    found = response.json()
    assert (found["llm_api_key"], found["search_api_key"]) == ("llm-plain", "search-plain")
    assert found["agent_settings"]["llm"] == SETTINGS["agent_settings_diff"]["llm"]
    assert found["agent_settings"]["mcp_config"]["docs"]["auth"] == {"strategy": "bearer", "value": "mcp-plain"}
    assert found["mcp_config"]["stdio_servers"][0]["env"] == {"TOKEN": "env-plain"}
    assert found["llm_profiles"]["profiles"] == {"fast": {"model": "m", "api_key": "profile-plain"}}
    assert "secret-plain" not in response.text  # these have separate routes


@pytest.mark.usefixtures("saved_settings")
def test_servers_are_usable_with_both_keys(client: TestClient, user: ApiUser, sandbox: Sandbox) -> None:
    found = client.get(ME, headers=both_keys(user, sandbox)).json()
    assert found["mcp_config"]["shttp_servers"][0]["api_key"] == "mcp-plain"
    assert found["llm_api_key"] is None
    assert found["agent_settings"]["mcp_config"]["docs"]["auth"] == {"strategy": "bearer", "value": MASK}
    for key in ("", "aw_wrong", user.key):
        masked = client.get(ME, headers=user.headers | {"X-Session-API-Key": key})
        assert (masked.status_code, "plain" in masked.text) == (200, False)


@pytest.mark.usefixtures("saved_settings")
def test_disabled_server_is_not_exposed_to_a_sandbox(client: TestClient, user: ApiUser, sandbox: Sandbox) -> None:
    off = {"agent_settings_diff": {"mcp_config": {"docs": {"enabled": False}}}}
    assert client.post("/api/v1/settings", json=off, headers=user.headers).status_code == 200
    assert client.get(ME, headers=both_keys(user, sandbox)).json()["mcp_config"]["shttp_servers"] == []
    assert client.get(ME, headers=user.headers).json()["mcp_config"]["shttp_servers"][0]["enabled"] is False


@pytest.mark.usefixtures("saved_settings")
def test_secrets_are_not_exposed_to_other_callers(
    client: TestClient, database: Database, user: ApiUser, other_user: ApiUser, sandbox: Sandbox
) -> None:
    paused = make_sandbox(database, user, status=Status.PAUSED)
    deleted = make_sandbox(database, user, desired=Desired.DELETED)
    theirs = make_sandbox(database, other_user)
    for headers, status in (
        (user.headers, 401),
        (user.headers | {"X-Session-API-Key": ""}, 401),
        (user.headers | {"X-Session-API-Key": "aw_wrong"}, 401),
        (user.headers | {"X-Session-API-Key": user.key}, 401),
        ({"X-Session-API-Key": user.key}, 401),
        ({"X-Session-API-Key": session_key_of(sandbox)}, 401),
        ({"Authorization": f"Bearer {session_key_of(sandbox)}"}, 401),
        (both_keys(user, paused), 401),
        (both_keys(user, deleted), 401),
        (both_keys(user, theirs), 403),
        (both_keys(other_user, sandbox), 403),
    ):
        response = client.get(EXPOSED, headers=headers)
        assert (response.status_code, "plain" in response.text) == (status, False), headers
        assert response.json()["detail"]


def test_git_info_comes_from_the_settings(client: TestClient, user: ApiUser) -> None:
    response = client.get("/api/v1/users/git-info", headers=user.headers)
    assert (response.status_code, "provider" in response.json()["detail"]) == (403, True)
    host_only = {"provider_tokens": {"gitlab": {"host": "gitlab.example.com"}}}
    client.post("/api/v1/secrets/git-providers", json=host_only, headers=user.headers)
    assert client.get("/api/v1/users/git-info", headers=user.headers).status_code == 403
    names = {"git_user_name": "Alice", "git_user_email": "alice@example.com"}
    client.post("/api/v1/settings", json=names, headers=user.headers)
    token = {"provider_tokens": {"github": {"token": "plain", "user_id": "alice-7"}}}
    client.post("/api/v1/secrets/git-providers", json=token, headers=user.headers)
    assert client.get("/api/v1/users/git-info", headers=user.headers).json() == {
        "id": "alice-7",
        "login": "alice-7",
        "avatar_url": "",
        "company": None,
        "name": "Alice",
        "email": "alice@example.com",
    }
