"""A mask that is sent back keeps the secret behind it."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.conversations import known_secrets
from shared.db.database import Database
from shared.models import UserSettings
from tests.api.routes.v1.settings.stored import (
    ENV_VALUE,
    FULL,
    KEYS,
    MASK,
    MASKED_MCP,
    MCP,
    SHTTP_KEY,
    load,
    raw_store,
    read,
    store,
)
from tests.factories import VAULT, ApiUser


@pytest.mark.parametrize("name", KEYS)
def test_mask_keeps_a_key_and_an_empty_text_clears_it(
    client: TestClient, database: Database, user: ApiUser, name: str
) -> None:
    store(client, user, {name: MASK})
    assert getattr(load(database, user), name) is None
    store(client, user, KEYS)
    store(client, user, {name: MASK})
    assert getattr(load(database, user), name) == KEYS[name]
    store(client, user, {name: ""})
    assert read(client, user)[f"{name}_set"] is False
    assert load(database, user).model_dump().items() >= {**KEYS, name: None}.items()


def test_settings_that_were_read_can_be_sent_back(client: TestClient, database: Database, user: ApiUser) -> None:
    store(client, user, FULL)
    before, shown = load(database, user), read(client, user)
    store(client, user, shown)
    assert load(database, user) == before
    assert read(client, user).items() >= shown.items()


def test_changed_server_keeps_masked_values(client: TestClient, database: Database, user: ApiUser) -> None:
    store(client, user, {"mcp_config": MCP})
    sent = json.loads(json.dumps(MASKED_MCP))
    sent["stdio_servers"][0] |= {"args": "run 'two words'", "env": {"TOKEN": MASK, "NEW": "1"}}
    sent["shttp_servers"][0] |= {"timeout": 9}
    sent["shttp_servers"].append({"url": "ws://new.example.com:81/x"})
    store(client, user, {"mcp_config": sent})
    assert load(database, user).mcp_config == {
        "sse_servers": MCP["sse_servers"],
        "stdio_servers": [
            {"name": "files", "command": "npx", "args": ["run", "two words"], "env": {"TOKEN": ENV_VALUE, "NEW": "1"}}
        ],
        "shttp_servers": [
            {"url": "https://shttp.example.com", "api_key": SHTTP_KEY, "timeout": 9},
            {"url": "ws://new.example.com:81/x", "api_key": None},
        ],
    }


def test_server_keeps_its_key_when_it_moves_to_another_list(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    store(client, user, {"mcp_config": MCP})
    store(client, user, {"mcp_config": {"shttp_servers": MASKED_MCP["sse_servers"]}})
    assert load(database, user).mcp_config == {
        "sse_servers": [],
        "stdio_servers": [],
        "shttp_servers": MCP["sse_servers"],
    }


@pytest.mark.parametrize(
    "servers",
    [
        {"sse_servers": [{"url": "https://elsewhere.example.com", "api_key": MASK}]},
        {"shttp_servers": [{"url": f"https://{MASK}@sse.example.com"}]},
        {"sse_servers": [{"url": "https://shttp.example.com:8443", "api_key": MASK}]},
        {"stdio_servers": [{"name": "other", "command": "npx", "env": {"TOKEN": MASK}}]},
        {"stdio_servers": [{"name": "files", "command": "npx", "env": {"OTHER": MASK}}]},
    ],
)
def test_mask_without_a_stored_secret_is_rejected(client: TestClient, user: ApiUser, servers: dict[str, Any]) -> None:
    store(client, user, {"mcp_config": MCP})
    response = client.post("/api/settings", json={"language": "fr", "mcp_config": servers}, headers=user.headers)
    assert response.status_code == 400
    assert response.json()["detail"].startswith("mcp_config: ")
    assert read(client, user).items() >= {"language": None, "mcp_config": MASKED_MCP}.items()


@pytest.mark.parametrize("path", ["/api/settings", "/api/v1/settings"])
def test_password_in_the_llm_s_url_is_masked_and_stays(
    client: TestClient, database: Database, user: ApiUser, path: str
) -> None:
    url, shown = "https://me:pass-plain@llm.example.com/v1", f"https://{MASK}@llm.example.com/v1"
    client.post(path, json={"llm_base_url": url}, headers=user.headers)
    response = client.get(path, headers=user.headers)
    assert (response.json()["llm_base_url"], "plain" in response.text) == (shown, False)
    assert client.post(path, json={"llm_base_url": shown}, headers=user.headers).status_code == 200
    assert load(database, user).llm_base_url == url
    assert "plain" not in raw_store(database)
    elsewhere = shown.replace("llm.", "other.")
    assert client.post(path, json={"llm_base_url": elsewhere}, headers=user.headers).status_code == 400
    with database.reading() as session:
        hide = known_secrets.redact_for(session, VAULT, user.id)
    assert "plain" not in hide("401 from me with pass-plain")


def test_passwords_in_nested_urls_are_masked_and_stay(client: TestClient, database: Database, user: ApiUser) -> None:
    url, shown = "https://me:pass-plain@example.com", f"https://{MASK}@example.com"

    def diff(value: str) -> dict[str, Any]:
        return {"llm": {"base_url": value, "ollama_base_url": value}, "verification": {"critic_server_url": value}}

    for value in (url, shown):
        body = {"agent_settings_diff": diff(value)}
        assert client.post("/api/v1/settings", json=body, headers=user.headers).status_code == 200
    llm = {"model": "m", "base_url": url}
    for sent in (llm, llm | {"base_url": shown}):
        response = client.post("/api/v1/settings/profiles/p", json={"llm": sent}, headers=user.headers)
        assert response.status_code == 201, response.text
    stored = load(database, user)
    assert (stored.llm_base_url, stored.llm_profiles.profiles) == (url, {"p": llm})
    assert stored.agent_settings == {"llm": {"ollama_base_url": url}, "verification": {"critic_server_url": url}}
    for path in ("/settings", "/settings/profiles", "/settings/profiles/p", "/users/me"):
        response = client.get(f"/api/v1{path}", headers=user.headers)
        assert (shown in response.text, "plain" in response.text) == (True, False), path


def test_url_whose_password_is_lost_is_not_set(client: TestClient, database: Database, user: ApiUser) -> None:
    store(client, user, {"llm_base_url": "https://me:pass-plain@llm.example.com", "llm_model": "m"})
    with database.transaction() as session:
        session.get_one(UserSettings, user.id).sealed = VAULT.encrypt("{}")
    assert read(client, user).items() >= {"llm_base_url": None, "llm_model": "m"}.items()


def test_header_and_capability_with_the_name_of_a_url_are_none(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    llm = {"extra_headers": {"base_url": "plain"}, "capability_overrides": {"base_url": True}}
    for sent in (llm, llm | {"extra_headers": {"base_url": MASK}}):
        body = {"agent_settings_diff": {"llm": sent}}
        assert client.post("/api/v1/settings", json=body, headers=user.headers).status_code == 200
        response = client.post("/api/v1/settings/profiles/p", json={"llm": sent}, headers=user.headers)
        assert response.status_code == 201, response.text
    stored = load(database, user)
    assert (stored.agent_settings, stored.llm_profiles.profiles) == ({"llm": llm}, {"p": llm})
