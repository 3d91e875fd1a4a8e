"""Operations beyond V1 for the web UI and command lines: the current user, organizations, suggestions for forms."""

from typing import Any
from uuid import uuid4

from fastapi.testclient import TestClient

from api.schemas.v1.llm_catalog import SUGGESTED
from shared.ids import new_id
from tests.api.responses import get_json
from tests.factories import ApiUser


def test_endpoints_of_the_web_ui_describe_the_caller(client: TestClient, user: ApiUser) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert client.post("/api/authenticate", headers=user.headers | form).status_code == 200
    assert client.post("/api/authenticate", headers=form).status_code == 401
    assert get_json("/api/keys/llm/byor", client, user) == {"key": None}
    assert get_json("/api/agent-profiles", client, user) == {"profiles": [], "active_agent_profile_id": None}


def test_each_user_owns_one_organization(client: TestClient, user: ApiUser) -> None:
    found = get_json("/api/organizations", client, user)
    assert [item["id"] for item in found["items"]] == [found["current_org_id"]] == [user.id]
    assert get_json(f"/api/organizations/{user.id}/me", client, user) == {
        "org_id": user.id,
        "user_id": user.id,
        "role": "owner",
        "permissions": None,
    }


def test_id_of_another_organization_means_the_caller_s_organization(
    client: TestClient, user: ApiUser, other_user: ApiUser
) -> None:
    """The web UI keeps the id in the browser when another user logs in."""
    for earlier in (other_user.id, new_id(), str(uuid4())):
        assert get_json(f"/api/organizations/{earlier}/me", client, user)["org_id"] == user.id
        profiles = f"/api/organizations/{earlier}/profiles"
        saved = client.post(f"{profiles}/mine", json={"llm": {"model": "m"}}, headers=user.headers)
        assert saved.status_code == 201, saved.text
        assert [item["name"] for item in get_json(profiles, client, user)["profiles"]] == ["mine"]
    assert get_json(f"/api/organizations/{user.id}/profiles", client, other_user)["profiles"] == []


def test_provider_connections_are_empty(client: TestClient, user: ApiUser, other_user: ApiUser) -> None:
    """Agent Canvas lists provider connections on its page of LLM settings."""
    path = f"/api/organizations/{user.id}/provider-connections"
    assert get_json(path, client, user) == get_json(path, client, other_user) == {"connections": []}


def _all_of(client: TestClient, user: ApiUser, path: str, **params: Any) -> list[Any]:
    items, page_id = [], None
    while True:
        page = get_json(path, client, user, limit=5, **params, **({"page_id": page_id} if page_id else {}))
        items += page["items"]
        page_id = page["next_page_id"]
        if page_id is None:
            return items


def test_models_and_providers_are_suggested(client: TestClient, user: ApiUser) -> None:
    models = _all_of(client, user, "/api/v1/config/models/search")
    assert models == get_json("/api/v1/config/models/search", client, user, limit=100)["items"]
    assert [(model["provider"], model["name"]) for model in models] == SUGGESTED
    assert {"provider": "openai", "name": "gpt-4o", "verified": True, "hidden": False, "canonical": None} in models
    providers = [item["name"] for item in _all_of(client, user, "/api/v1/config/providers/search")]
    assert providers == sorted({model["provider"] for model in models})
    found = _all_of(client, user, "/api/v1/config/models/search", query="GPT-5", provider__eq="openai")
    assert found
    assert all("gpt-5" in model["name"] for model in found)
    assert [one["name"] for one in _all_of(client, user, "/api/v1/config/providers/search", query="ANTH")] == [
        "anthropic"
    ]
    for path in ("models", "providers"):
        assert _all_of(client, user, f"/api/v1/config/{path}/search", verified__eq=False) == []
        everything = _all_of(client, user, f"/api/v1/config/{path}/search")
        assert _all_of(client, user, f"/api/v1/config/{path}/search", verified__eq=True) == everything
    assert get_json("/api/v1/skills/search", client, user) == {"items": [], "next_page_id": None}
    requested = [{"name": "ours", "source": "github:acme/skills", "auto_load": ["review"]}]
    preview = client.post("/api/v1/skills/marketplace-skills", json=requested, headers=user.headers).json()
    assert (preview["skills"], preview["plugins"], preview["marketplace_skills"]) == ([], [], {})
    assert preview["errors"] == ["ours: this service loads no skills from marketplaces"]


def test_web_ui_configuration_needs_no_key(client: TestClient) -> None:
    found = client.get("/api/v1/web-client/config").json()
    assert (found["app_mode"], found["posthog_client_key"], found["kind"]) == ("oss", None, "WebClientConfig")
    assert found["feature_flags"]["deployment_mode"] == "self_hosted"
    assert (found["providers_configured"], found["acp_providers"]) == ([], [])
