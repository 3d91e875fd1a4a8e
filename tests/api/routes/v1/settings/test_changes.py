"""A change of settings writes the sent values, and no others."""

from typing import Any

from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.users import secrets
from tests.api.routes.v1.settings.stored import (
    DEFAULTS,
    FULL,
    JSON,
    LLM_KEY,
    MASK,
    OPEN,
    SANDBOX_KEY,
    SEARCH_KEY,
    SECRET,
    load,
    read,
    refused,
    store,
)
from tests.factories import VAULT, ApiUser

# Valid values of settings that do not accept every text.
OTHER = {"llm_base_url": "https://other.example.com", "security_analyzer": "none"}


def test_field_that_is_sent_changes_only_itself(client: TestClient, database: Database, user: ApiUser) -> None:
    store(client, user, FULL)
    expected = read(client, user)
    for name, value in OPEN.items():
        changed = OTHER.get(name, {bool: not value, int: 77, float: 0.5, str: "other"}[type(value)])
        store(client, user, {name: changed})
        expected[name] = changed
        assert read(client, user) == expected
    assert load(database, user).llm_api_key == LLM_KEY


def test_null_sets_the_default_or_keeps_the_value(client: TestClient, database: Database, user: ApiUser) -> None:
    store(client, user, FULL)
    store(client, user, dict.fromkeys(FULL))
    kept = ("llm_model", "llm_base_url", "user_consents_to_analytics")
    assert read(client, user).items() >= {**DEFAULTS, **{name: OPEN[name] for name in kept}}.items()
    stored = load(database, user)
    assert (stored.llm_api_key, stored.search_api_key, stored.sandbox_api_key) == (LLM_KEY, SEARCH_KEY, SANDBOX_KEY)
    assert stored.mcp_config is None
    # Secrets and tokens are not removed by null.
    assert read(client, user)["provider_tokens_set"] == {"github": "github.example.com"}
    assert set(read(client, user)["secrets_store"]["custom_secrets"]) == {"DEPLOY_KEY"}


def test_empty_text_clears_the_model_and_its_url(client: TestClient, user: ApiUser) -> None:
    store(client, user, OPEN)
    store(client, user, {"llm_model": "", "llm_base_url": ""})
    found = read(client, user)
    assert (found["llm_model"], found["llm_base_url"]) == (None, None)


def test_environment_is_accepted_as_one_text(client: TestClient, database: Database, user: ApiUser) -> None:
    server = {"name": "files", "command": "npx", "env": "A=1, B=x=y"}
    store(client, user, {"mcp_config": {"stdio_servers": [server]}})
    servers = load(database, user).mcp_config
    assert servers is not None
    assert servers["stdio_servers"][0]["env"] == {"A": "1", "B": "x=y"}


def test_server_is_accepted_as_its_url(client: TestClient, user: ApiUser) -> None:
    sse, shttp = "https://mcp.example.com/sse", "https://mcp.example.com/mcp"
    keyed = {"url": "https://keyed.example.com", "api_key": "plain"}
    store(client, user, {"mcp_config": {"sse_servers": [sse, keyed], "shttp_servers": [shttp]}})
    shown = read(client, user)["mcp_config"]
    assert [one["url"] for one in (*shown["sse_servers"], *shown["shttp_servers"])] == [sse, keyed["url"], shttp]
    response = client.post("/api/add-git-providers", json={"mcp_config": {"sse_servers": [sse]}}, headers=user.headers)
    assert response.status_code == 200, response.text
    assert read(client, user)["mcp_config"]["shttp_servers"] == []


def test_partial_update_of_secrets_keeps_the_others(client: TestClient, user: ApiUser) -> None:
    store(client, user, {"secrets_store": {"custom_secrets": {"A": "1", "B": {"secret": "2", "description": "b"}}}})
    store(client, user, {"secrets_store": {"custom_secrets": {"A": {"description": "a"}, "C": {"secret": MASK}}}})
    assert read(client, user)["secrets_store"]["custom_secrets"] == {
        "A": {"secret": MASK, "description": "a"},
        "B": {"secret": MASK, "description": "b"},
    }


def test_error_repeats_only_valid_names_of_secrets(client: TestClient, user: ApiUser) -> None:
    sent: tuple[dict[str, Any], ...] = ({"LLM_API_KEY": SECRET}, {f"{SECRET}-": 1, "LLM_API_KEY": SECRET})
    taken, pasted = (
        client.post("/api/settings", json={"secrets_store": {"custom_secrets": named}}, headers=user.headers)
        for named in sent
    )
    assert (taken.status_code, pasted.status_code) == (422, 422)
    assert "LLM_API_KEY" in taken.text
    assert SECRET not in taken.text + pasted.text


def test_settings_with_a_secret_whose_name_became_reserved_can_be_sent_back(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    with database.transaction() as session:
        secrets.put_custom_secrets(session, VAULT, user.id, {"LLM_OLD": {"secret": "old"}})
    store(client, user, {"language": "fr"})
    shown = read(client, user)["secrets_store"]
    assert shown["custom_secrets"] == {"LLM_OLD": {"secret": MASK, "description": None}}
    store(client, user, {"secrets_store": shown})
    assert refused(client, user, {"secrets_store": {"custom_secrets": {"LLM_OLD": "new"}}})


def test_too_many_secrets_are_refused(client: TestClient, user: ApiUser) -> None:
    store(client, user, {"secrets_store": {"custom_secrets": {f"S{number}": "x" for number in range(200)}}})
    body = {"language": "fr", "secrets_store": {"custom_secrets": {"ONE_MORE": "x"}}}
    assert client.post("/api/settings", json=body, headers=user.headers).status_code == 400
    assert read(client, user)["language"] is None
    assert "ONE_MORE" not in read(client, user)["secrets_store"]["custom_secrets"]


def test_unknown_fields_are_ignored(client: TestClient, user: ApiUser) -> None:
    body = '{"language": "en", "\\ud800": 1, "agent_settings": {"x": 1}, "user_id": "another"}'
    assert client.post("/api/settings", content=body, headers=user.headers | JSON).status_code == 200
    assert read(client, user)["language"] == "en"
