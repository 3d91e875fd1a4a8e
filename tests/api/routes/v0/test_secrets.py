"""V0's settings, tokens and secrets: a value that one interface writes is read by the other."""

from typing import Any

from fastapi.testclient import TestClient

from tests.factories import ApiUser

SECRET = {"name": "TOKEN", "value": "plain", "description": "for tests"}
LISTED = {"name": "TOKEN", "description": "for tests"}


def listed(client: TestClient, user: ApiUser) -> list[dict[str, Any]]:
    """The secrets as both interfaces show them."""
    old = client.get("/api/secrets", headers=user.headers).json()
    new = client.get("/api/v1/secrets/search", headers=user.headers).json()
    assert old == {"custom_secrets": new["items"]}
    assert "plain" not in str(old)
    return list(new["items"])


def test_secret_is_created_changed_and_deleted(client: TestClient, user: ApiUser, other_user: ApiUser) -> None:
    response = client.post("/api/secrets", json=SECRET, headers=user.headers)
    assert (response.status_code, response.json()) == (201, {"message": "Secret created successfully"})
    assert listed(client, user) == [LISTED]
    assert listed(client, other_user) == []
    response = client.put("/api/secrets/TOKEN", json=LISTED | {"name": "OTHER"}, headers=user.headers)
    assert (response.status_code, response.json()) == (200, {"message": "Secret updated successfully"})
    assert listed(client, user) == [LISTED | {"name": "OTHER"}]
    response = client.delete("/api/secrets/OTHER", headers=user.headers)
    assert (response.status_code, response.json()) == (200, {"message": "Secret deleted successfully"})
    assert listed(client, user) == []


def test_name_in_use_is_refused(client: TestClient, user: ApiUser) -> None:
    assert client.post("/api/v1/secrets", json=SECRET, headers=user.headers).status_code == 201
    response = client.post("/api/secrets", json=SECRET | {"description": "another"}, headers=user.headers)
    assert response.status_code == 400
    assert "'TOKEN'" in response.json()["message"]
    assert listed(client, user) == [LISTED]


def test_unknown_secret_is_a_404(client: TestClient, user: ApiUser, other_user: ApiUser) -> None:
    client.post("/api/secrets", json=SECRET, headers=other_user.headers)
    for method, body in (("PUT", {"name": "TOKEN"}), ("DELETE", None)):
        response = client.request(method, "/api/secrets/TOKEN", json=body, headers=user.headers)
        assert (response.status_code, "TOKEN" in response.json()["error"]) == (404, True)
    assert listed(client, other_user) == [LISTED]


def test_tokens_are_removed(client: TestClient, user: ApiUser) -> None:
    body = {"provider_tokens": {"github": {"token": "t"}, "gitlab": {"token": "t"}}}
    client.post("/api/add-git-providers", json=body, headers=user.headers)
    client.post("/api/settings", json={}, headers=user.headers)
    for path in ("/api/settings", "/api/v1/settings"):
        assert client.get(path, headers=user.headers).json()["provider_tokens_set"] == {"github": None, "gitlab": None}
    response = client.post("/api/unset-provider-tokens", headers=user.headers)
    assert (response.status_code, response.json()) == (200, {"message": "Unset Git provider tokens"})
    for path in ("/api/settings", "/api/v1/settings"):
        assert client.get(path, headers=user.headers).json()["provider_tokens_set"] == {}


def test_settings_are_not_reset(client: TestClient, user: ApiUser) -> None:
    client.post("/api/settings", json={"language": "de"}, headers=user.headers)
    response = client.post("/api/reset-settings", headers=user.headers)
    assert (response.status_code, "null" in response.json()["error"]) == (410, True)
    assert client.get("/api/settings", headers=user.headers).json()["language"] == "de"


def test_options_are_listed(client: TestClient, user: ApiUser) -> None:
    found = {
        name: client.get(f"/api/options/{name}", headers=user.headers).json()
        for name in ("models", "agents", "security-analyzers", "config")
    }
    assert "openai/gpt-4o" in found["models"]
    assert found["agents"] == ["CodeActAgent"]
    assert found["security-analyzers"] == ["llm"]
    assert {"APP_MODE", "GITHUB_CLIENT_ID", "POSTHOG_CLIENT_KEY", "FEATURE_FLAGS"} <= found["config"].keys()
