"""Secrets of LLM profiles: which ones an activation and a copy have."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from tests.api.routes.v1.settings.v1 import MASK, agent, load, post, read
from tests.factories import ApiUser

FAMILY = "/api/v1/settings/profiles"
KEYLESS = {"model": "openai/gpt-4o", "temperature": 0.5}


@pytest.fixture
def send(client: TestClient, user: ApiUser) -> Any:
    """Send a request about the user's profiles; return the document of its success."""

    def send(method: str, path: str = "", body: Any = None) -> Any:
        response = client.request(method, FAMILY + path, json=body, headers=user.headers)
        assert response.is_success, response.text
        return response.json()

    return send


@pytest.mark.parametrize(("model", "key"), [("openai/o3", "plain"), ("anthropic/claude", None)])
def test_activated_profile_without_a_key_has_the_key_of_its_own_server_only(
    client: TestClient, database: Database, user: ApiUser, send: Any, model: str, key: str | None
) -> None:
    post(client, user, {"llm_model": model, "llm_api_key": "plain"})
    send("POST", "/keyless", {"llm": KEYLESS})
    send("POST", "/keyless/activate", {})
    assert load(database, user).llm_api_key == key
    post(client, user, {"language": "en", "llm_api_key": "new"})
    assert send("GET")["active_profile"] == "keyless"
    post(client, user, agent(llm={"seed": 1}))
    assert send("GET")["active_profile"] is None


def test_copy_of_a_profile_has_its_secrets(database: Database, user: ApiUser, send: Any) -> None:
    """Agent Canvas duplicates a profile by sending what it was shown under another name."""
    for name in ("deep", "fast"):
        secrets = {"api_key": f"{name}-plain", "extra_headers": {"X-Key": f"{name}-header"}}
        send("POST", f"/{name}", {"llm": KEYLESS | secrets})
    shown = send("GET", "/fast")["config"]
    assert (shown["api_key"], shown["extra_headers"]) == (None, {"X-Key": MASK})
    send("POST", "/fast-copy", {"llm": shown, "include_secrets": True})
    send("POST", "/without", {"llm": shown, "include_secrets": False})
    saved = load(database, user).llm_profiles.profiles
    assert saved["fast-copy"] == saved["fast"]
    assert saved["without"] == KEYLESS


def test_profile_that_is_no_copy_has_no_secret_of_another(
    client: TestClient, database: Database, user: ApiUser, send: Any
) -> None:
    send("POST", "/deep", {"llm": KEYLESS | {"api_key": "plain", "aws_session_token": "token"}})
    send("POST", "/other", {"llm": KEYLESS})
    assert load(database, user).llm_profiles.profiles["other"] == KEYLESS
    changed = send("GET", "/deep")["config"] | {"base_url": "https://other.example.com"}
    assert client.post(f"{FAMILY}/changed", json={"llm": changed}, headers=user.headers).status_code == 400


def test_profile_of_the_settings_as_shown_has_their_secrets_if_it_has_masks(
    client: TestClient, database: Database, user: ApiUser, send: Any
) -> None:
    llm = {"model": "openai/m", "base_url": "https://me:plain@llm.example.com", "api_key": "key"}
    for url, saved in ((llm["base_url"], llm), ("https://llm.example.com", {"model": "openai/m"})):
        post(client, user, agent(llm=llm | {"base_url": url}))
        send("POST", "/copy", {"llm": read(client, user)["agent_settings"]["llm"]})
        assert load(database, user).llm_profiles.profiles["copy"] == {"base_url": url} | saved
        send("DELETE", "/copy")
    changed = llm | {"base_url": f"https://{MASK}@other.example.com", "api_key": None}
    assert client.post(f"{FAMILY}/changed", json={"llm": changed}, headers=user.headers).status_code == 400
