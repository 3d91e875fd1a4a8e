"""Custom secrets and git tokens of V1: written, renamed, removed, never shown."""

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.users import secrets, settings_store
from shared.users.secrets import CustomSecret
from tests.api.routes.v1.settings.stored import raw_store
from tests.factories import VAULT, ApiUser

PATH = "/api/v1/secrets"
MASK = "**********"
JSON = {"Content-Type": "application/json"}


def create(client: TestClient, user: ApiUser, name: str, value: str = "plain", **more: Any) -> None:
    response = client.post(PATH, json={"name": name, "value": value} | more, headers=user.headers)
    assert (response.status_code, set(response.json())) == (201, {"message"}), response.text


def search(client: TestClient, user: ApiUser, **params: Any) -> dict[str, Any]:
    response = client.get(f"{PATH}/search", params=params, headers=user.headers)
    assert response.status_code == 200, response.text
    assert "plain" not in response.text
    found: dict[str, Any] = response.json()
    return found


def names(client: TestClient, user: ApiUser, **params: Any) -> list[str]:
    return [item["name"] for item in search(client, user, **params)["items"]]


def stored(database: Database, user: ApiUser) -> dict[str, CustomSecret]:
    with database.reading() as session:
        return secrets.custom_secrets(session, VAULT, user.id)


def test_list_is_empty_at_first(client: TestClient, user: ApiUser) -> None:
    assert search(client, user) == {"items": [], "next_page_id": None}
    missing = client.delete(f"{PATH}/A", headers=user.headers)
    assert (missing.status_code, missing.json()["detail"]) == (404, "no secret with name 'A'")
    assert client.put(f"{PATH}/A", json={"name": "A"}, headers=user.headers).status_code == 404


def test_secret_is_stored_and_changed(client: TestClient, database: Database, user: ApiUser) -> None:
    create(client, user, "DEPLOY_KEY", "plain-1", description="for deploys")
    assert search(client, user)["items"] == [{"name": "DEPLOY_KEY", "description": "for deploys"}]
    create(client, user, "DEPLOY_KEY", "plain-2")
    assert stored(database, user) == {"DEPLOY_KEY": CustomSecret("plain-2", "for deploys")}
    create(client, user, "DEPLOY_KEY", "plain-3", description=None)
    assert stored(database, user) == {"DEPLOY_KEY": CustomSecret("plain-3", None)}
    assert "plain" not in raw_store(database)


def test_pages_are_by_name(client: TestClient, user: ApiUser) -> None:
    for name in ("C", "A", "B_x", "b_y"):
        create(client, user, name)
    everything, page_id = [], None
    while True:
        page = search(client, user, limit=1, **({"page_id": page_id} if page_id else {}))
        everything += [item["name"] for item in page["items"]]
        page_id = page["next_page_id"]
        if page_id is None:
            break
    assert sorted(everything) == ["A", "B_x", "C", "b_y"]
    assert everything == names(client, user)
    assert set(names(client, user, name__contains="B_")) == {"B_x", "b_y"}
    assert names(client, user, name__contains="%") == []


def test_name_and_description_of_a_secret_are_changed(client: TestClient, database: Database, user: ApiUser) -> None:
    create(client, user, "A", "plain-a", description="a")
    create(client, user, "B")
    for change, expected in (
        ({"name": "C", "description": "c"}, CustomSecret("plain-a", "c")),
        ({"name": "C"}, CustomSecret("plain-a", None)),
        ({"name": "C", "description": ""}, CustomSecret("plain-a", "")),
        ({"name": "C", "description": None}, CustomSecret("plain-a", None)),
    ):
        path = f"{PATH}/{'A' if 'A' in stored(database, user) else 'C'}"
        assert client.put(path, json=change, headers=user.headers).status_code == 200
        assert stored(database, user)["C"] == expected
    taken = client.put(f"{PATH}/C", json={"name": "B"}, headers=user.headers)
    assert (taken.status_code, "B" in taken.json()["detail"]) == (400, True)
    reserved = client.put(f"{PATH}/C", json={"name": "LLM_X"}, headers=user.headers)
    assert (reserved.status_code, "LLM_X" in reserved.json()["detail"]) == (400, True)
    assert names(client, user) == ["B", "C"]


def test_secret_is_deleted(client: TestClient, user: ApiUser) -> None:
    create(client, user, "A")
    assert client.delete(f"{PATH}/A", headers=user.headers).status_code == 200
    assert client.delete(f"{PATH}/A", headers=user.headers).status_code == 404
    assert names(client, user) == []


BAD: list[tuple[Any, str]] = [
    ({}, "name"),
    ({"name": "A"}, "value"),
    ({"name": "A", "value": ""}, "value"),
    ({"name": "A", "value": MASK}, "value"),
    ({"name": "A", "value": 1}, "value"),
    ({"name": "A", "value": "é" * (32 * 1024 + 1)}, "value"),
    ({"name": "A", "value": "\ud800"}, "value"),
    ({"name": "A", "value": "plain", "description": 1}, "description"),
    *(({"name": name, "value": "plain"}, "name") for name in ("", "1A", "A-B", "A B", "A" * 257, "LLM_KEY", "VSCODE")),
]


def test_invalid_secrets_are_refused(client: TestClient, user: ApiUser) -> None:
    for body, where in BAD:
        response = client.post(PATH, content=json.dumps(body), headers=user.headers | JSON)
        assert response.status_code == 422, body
        assert where in [entry["loc"][-1] for entry in response.json()["detail"]]
        assert "plain" not in response.text
    assert names(client, user) == []


@pytest.mark.parametrize("name", ["PATH", "HOME", "LD_PRELOAD"])
def test_name_of_a_shell_variable_is_refused(client: TestClient, user: ApiUser, name: str) -> None:
    new = client.post(PATH, json={"name": name, "value": "plain"}, headers=user.headers)
    assert (new.status_code, name in new.json()["detail"][0]["msg"]) == (422, True)
    create(client, user, "A")
    renamed = client.put(f"{PATH}/A", json={"name": name}, headers=user.headers)
    assert (renamed.status_code, name in renamed.json()["detail"]) == (400, True)
    store = {"secrets_store": {"custom_secrets": {name: "plain"}}}
    assert client.post("/api/v1/settings", json=store, headers=user.headers).status_code == 422
    start = client.post("/api/v1/app-conversations", json={"secrets": {name: "plain"}}, headers=user.headers)
    assert start.status_code == 422
    assert names(client, user) == ["A"]


def test_secrets_are_per_user(client: TestClient, database: Database, user: ApiUser, other_user: ApiUser) -> None:
    create(client, user, "A")
    assert names(client, other_user) == []
    assert client.delete(f"{PATH}/A", headers=other_user.headers).status_code == 404
    assert client.put(f"{PATH}/A", json={"name": "B"}, headers=other_user.headers).status_code == 404
    create(client, other_user, "A", "plain-other")
    assert stored(database, user)["A"].value == "plain"


GIT = f"{PATH}/git-providers"


def tokens(database: Database, user: ApiUser) -> dict[str, str | None]:
    with database.reading() as session:
        known = secrets.provider_tokens(session, VAULT, user.id)
    return {provider: entry.token for provider, entry in known.items()}


def test_tokens_are_stored_and_removed(client: TestClient, database: Database, user: ApiUser) -> None:
    for name in ("github", "gitlab"):
        body = {"provider_tokens": {name: {"token": f"plain-{name}", "user_id": None, "host": None}}}
        response = client.post(GIT, json=body, headers=user.headers)
        assert (response.status_code, response.json()) == (200, {"message": "Git providers stored"})
    assert tokens(database, user) == {"github": "plain-github", "gitlab": "plain-gitlab"}
    for _ in range(2):
        assert client.delete(GIT, headers=user.headers).status_code == 200
        assert tokens(database, user) == {}


@pytest.mark.parametrize(
    "servers",
    [
        {"mcpServers": {"docs": {"url": "https://docs.example.com", "auth": "plain"}}},
        {"shttp_servers": [{"name": "docs", "url": "https://docs.example.com", "api_key": "plain"}]},
    ],
)
def test_servers_are_accepted_in_either_shape(
    client: TestClient, database: Database, user: ApiUser, servers: Any
) -> None:
    assert client.post(GIT, json={"mcp_config": servers}, headers=user.headers).status_code == 200
    with database.reading() as session:
        kept = settings_store.load(session, VAULT, user.id)
    assert kept is not None
    assert kept.mcp_config is not None
    assert kept.mcp_config["shttp_servers"] == [{"name": "docs", "url": "https://docs.example.com", "api_key": "plain"}]


def test_invalid_tokens_are_refused(client: TestClient, database: Database, user: ApiUser) -> None:
    for body in ({"provider_tokens": {"sourceforge": "plain"}}, {"provider_tokens": {"github": 1}}):
        assert client.post(GIT, json=body, headers=user.headers).status_code == 422
    assert tokens(database, user) == {}
