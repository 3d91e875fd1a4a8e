"""Reads of settings are complete, for each user separately, and without a secret in clear."""

from fastapi.testclient import TestClient

from api.schemas.v0.settings import SettingsUpdate
from shared.db.database import Database
from tests.api.routes.v1.settings.stored import (
    DEFAULTS,
    FULL,
    KEYS,
    MASK,
    MASKED_MCP,
    MCP,
    OPEN,
    SECRETS,
    load,
    raw_store,
    read,
    store,
)
from tests.factories import ApiUser


def test_settings_are_a_404_until_some_are_stored(client: TestClient, user: ApiUser) -> None:
    response = client.get("/api/settings", headers=user.headers)
    assert response.status_code == 404
    assert response.json().items() >= {"detail": "Settings not found", "error": "Settings not found"}.items()


def test_response_has_every_field_with_masked_secrets(client: TestClient, user: ApiUser) -> None:
    assert set(SettingsUpdate.model_fields) == set(FULL)
    store(client, user, FULL)
    assert read(client, user) == {
        **OPEN,
        **dict.fromkeys(KEYS),
        **dict.fromkeys((f"{name}_set" for name in KEYS), True),
        "mcp_config": MASKED_MCP,
        "secrets_store": {
            "provider_tokens": {},
            "custom_secrets": {"DEPLOY_KEY": {"secret": MASK, "description": "for deploys"}},
        },
        "provider_tokens_set": {"github": "github.example.com"},
    }


def test_empty_body_stores_the_defaults(client: TestClient, user: ApiUser) -> None:
    store(client, user, {})
    assert read(client, user) == {
        **DEFAULTS,
        **dict.fromkeys(KEYS),
        **dict.fromkeys((f"{name}_set" for name in KEYS), False),
        "mcp_config": None,
        "secrets_store": {"provider_tokens": {}, "custom_secrets": {}},
        "provider_tokens_set": {},
    }


def test_worker_reads_every_value_in_plain_text(client: TestClient, database: Database, user: ApiUser) -> None:
    store(client, user, FULL)
    stored = load(database, user)
    assert stored.model_dump(include=set(FULL)) == {**OPEN, **KEYS, "mcp_config": MCP}
    assert not [secret for secret in SECRETS if secret in f"{stored!r} {stored}"]


def test_store_contains_no_plain_text_secret(client: TestClient, database: Database, user: ApiUser) -> None:
    store(client, user, FULL)
    held = raw_store(database)
    assert OPEN["llm_model"] in held
    assert not [secret for secret in [*SECRETS, "sse.example.com", user.key] if secret in held]


def test_responses_contain_no_secret(client: TestClient, user: ApiUser) -> None:
    bodies = [FULL, *({"max_iterations": "x", name: value} for name, value in FULL.items())]
    responses = [client.post("/api/settings", json=body, headers=user.headers).text for body in bodies]
    responses.append(client.get("/api/settings", headers=user.headers).text)
    assert not [secret for secret in SECRETS if secret in "".join(responses)]


def test_settings_are_per_user(client: TestClient, database: Database, user: ApiUser, other_user: ApiUser) -> None:
    store(client, user, FULL)
    assert client.get("/api/settings", headers=other_user.headers).status_code == 404
    store(client, other_user, {"language": "tr", "llm_api_key": MASK})
    found = read(client, other_user)
    assert (found["language"], found["llm_api_key_set"], found["provider_tokens_set"]) == ("tr", False, {})
    assert found["secrets_store"]["custom_secrets"] == {}
    assert load(database, user).model_dump(include=set(FULL)) == {**OPEN, **KEYS, "mcp_config": MCP}


def test_request_without_a_key_is_a_401(client: TestClient, user: ApiUser) -> None:
    for headers in ({}, {"X-Session-API-Key": "aw_wrong"}):
        assert client.get("/api/settings", headers=headers).status_code == 401
        assert client.post("/api/settings", json={}, headers=headers).status_code == 401
    assert client.get("/api/settings", headers={"X-Session-API-Key": user.key}).status_code == 404
