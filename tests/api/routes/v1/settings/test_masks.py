"""A mask that is sent back keeps the secret behind it."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from tests.api.routes.v1.settings.stored import (
    ENV_VALUE,
    FULL,
    KEYS,
    MASK,
    MASKED_MCP,
    MCP,
    SHTTP_KEY,
    load,
    read,
    store,
)
from tests.factories import ApiUser


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
