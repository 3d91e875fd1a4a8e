"""POST /api/add-git-providers."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.users import secrets, settings_store
from shared.users.secrets import ProviderCredential
from shared.users.settings import Provider
from tests.factories import VAULT, ApiUser

MASK = "**********"
TOKEN = "ghp-plain-token"


def add(client: TestClient, user: ApiUser, body: Any) -> None:
    response = client.post("/api/add-git-providers", json=body, headers=user.headers)
    assert (response.status_code, response.json()) == (200, {"message": "Git providers stored"})


def tokens(database: Database, user: ApiUser) -> dict[str, ProviderCredential]:
    with database.reading() as session:
        return secrets.provider_tokens(session, VAULT, user.id)


def test_every_provider_is_known(client: TestClient, database: Database, user: ApiUser) -> None:
    assert list(Provider) == [
        "github",
        "gitlab",
        "bitbucket",
        "bitbucket_data_center",
        "forgejo",
        "azure_devops",
        "enterprise_sso",
    ]
    sent = {
        name: {"token": f"t-{name}", "user_id": f"u-{name}", "host": f"https://{name}.example.com:8443/x"}
        for name in Provider
    }
    add(client, user, {"provider_tokens": sent})
    assert tokens(database, user) == {
        name: ProviderCredential(entry["token"], entry["user_id"], entry["host"]) for name, entry in sent.items()
    }


def test_bare_token_is_accepted(client: TestClient, database: Database, user: ApiUser) -> None:
    add(client, user, {"provider_tokens": {"github": f" {TOKEN}\n"}})
    assert tokens(database, user) == {"github": ProviderCredential(TOKEN, None, None)}


def test_providers_that_are_not_named_are_kept(client: TestClient, database: Database, user: ApiUser) -> None:
    add(client, user, {"provider_tokens": {"github": TOKEN}})
    add(client, user, {"provider_tokens": {"gitlab": "other"}})
    empty: list[dict[str, Any]] = [{}, {"provider_tokens": {}}, {"provider_tokens": None, "mcp_config": None}]
    for body in [*empty, {"unknown": 1}]:
        add(client, user, body)
    assert {name: entry.token for name, entry in tokens(database, user).items()} == {
        "github": TOKEN,
        "gitlab": "other",
    }


@pytest.mark.parametrize("token", ["", MASK, None])
def test_empty_or_masked_token_keeps_the_stored_one(
    client: TestClient, database: Database, user: ApiUser, token: str | None
) -> None:
    add(client, user, {"provider_tokens": {"github": {"token": TOKEN, "user_id": "7", "host": "a.example.com"}}})
    add(client, user, {"provider_tokens": {"github": {"token": token, "host": "b.example.com"}}})
    assert tokens(database, user) == {"github": ProviderCredential(TOKEN, "7", "b.example.com")}
    add(client, user, {"provider_tokens": {"github": {"token": token, "host": None}}})
    add(client, user, {"provider_tokens": {"github": token}})
    assert tokens(database, user) == {"github": ProviderCredential(TOKEN, "7", None)}


@pytest.mark.parametrize("token", ["", MASK, None])
def test_provider_without_a_token_is_not_shown_as_set(
    client: TestClient, database: Database, user: ApiUser, token: str | None
) -> None:
    sent = {"github": {"token": token}, "gitlab": {"token": token, "host": "gitlab.example.com"}}
    add(client, user, {"provider_tokens": sent})
    assert tokens(database, user) == {"gitlab": ProviderCredential(None, None, "gitlab.example.com")}
    client.post("/api/settings", json={}, headers=user.headers)
    assert client.get("/api/settings", headers=user.headers).json()["provider_tokens_set"] == {}


def test_settings_show_which_tokens_are_set(client: TestClient, user: ApiUser) -> None:
    assert client.get("/api/settings", headers=user.headers).status_code == 404
    add(client, user, {"provider_tokens": {"github": TOKEN, "gitlab": {"token": "t", "host": "gitlab.example.com"}}})
    for path in ("/api/settings", "/api/v1/settings"):
        shown = client.get(path, headers=user.headers)
        assert (shown.status_code, shown.json()["enable_default_condenser"]) == (200, True)
        assert shown.json()["provider_tokens_set"] == {"github": None, "gitlab": "gitlab.example.com"}
        assert TOKEN not in shown.text


def test_mcp_servers_are_stored_beside_the_tokens(client: TestClient, database: Database, user: ApiUser) -> None:
    client.post("/api/settings", json={"language": "en"}, headers=user.headers)
    add(client, user, {"mcp_config": {"sse_servers": [{"url": "https://a.example.com", "api_key": "k"}]}})
    add(client, user, {"provider_tokens": {"github": TOKEN}, "mcp_config": None})
    with database.reading() as session:
        stored = settings_store.load(session, VAULT, user.id)
    assert stored is not None
    assert stored.language == "en"
    assert stored.mcp_config == {
        "sse_servers": [{"url": "https://a.example.com", "api_key": "k"}],
        "stdio_servers": [],
        "shttp_servers": [],
    }


def test_refused_token_is_not_stored(client: TestClient, database: Database, user: ApiUser) -> None:
    masked = {"sse_servers": [{"url": "https://a.example.com", "api_key": MASK}]}
    body = {"provider_tokens": {"github": TOKEN}, "mcp_config": masked}
    assert client.post("/api/add-git-providers", json=body, headers=user.headers).status_code == 400
    assert tokens(database, user) == {}


BAD: list[tuple[Any, list[str]]] = [
    ({"provider_tokens": []}, ["provider_tokens"]),
    ({"provider_tokens": "x"}, ["provider_tokens"]),
    ({"provider_tokens": {"sourceforge": TOKEN}}, ["provider_tokens"]),
    ({"provider_tokens": {"GitHub": TOKEN}}, ["provider_tokens"]),
    ({"provider_tokens": {"github": 1}}, ["provider_tokens", "github"]),
    ({"provider_tokens": {"github": [TOKEN]}}, ["provider_tokens", "github"]),
    ({"provider_tokens": {"github": {"token": {"a": TOKEN}}}}, ["provider_tokens", "github", "token"]),
    ({"provider_tokens": {"github": f"{TOKEN}\r\nX: y"}}, ["provider_tokens", "github", "token"]),
    ({"provider_tokens": {"github": TOKEN * 2000}}, ["provider_tokens", "github", "token"]),
    ({"provider_tokens": {"github": {"token": TOKEN, "user_id": 7}}}, ["provider_tokens", "github", "user_id"]),
    ({"provider_tokens": {"github": {"token": TOKEN, "user_id": "7" * 257}}}, ["provider_tokens", "github", "user_id"]),
    ({"provider_tokens": {"github": {"token": TOKEN, "host": "a b"}}}, ["provider_tokens", "github", "host"]),
    ({"provider_tokens": {"github": {"token": TOKEN, "host": "u@evil"}}}, ["provider_tokens", "github", "host"]),
    ({"provider_tokens": {"github": {"token": TOKEN, "host": "x" * 257}}}, ["provider_tokens", "github", "host"]),
    *(
        ({"provider_tokens": {"github": {"token": TOKEN, "host": host}}}, ["provider_tokens", "github", "host"])
        for host in ("a.example.com:99999", "a.example.com:0", "a.example.com:x", "https://", "[::1")
    ),
    ({"provider_tokens": {"github": {"token": " \t "}}}, ["provider_tokens", "github", "token"]),
    ({"mcp_config": []}, ["mcp_config"]),
    ([], []),
]


def test_invalid_bodies_are_refused_with_their_location(client: TestClient, database: Database, user: ApiUser) -> None:
    for body, where in BAD:
        response = client.post("/api/add-git-providers", json=body, headers=user.headers)
        assert response.status_code == 422, body
        assert [entry["loc"] for entry in response.json()["detail"]] == [["body", *where]]
        assert all(set(entry) == {"loc", "msg", "type"} for entry in response.json()["detail"])
        assert TOKEN not in response.text
    assert tokens(database, user) == {}


def test_error_names_the_unknown_provider(client: TestClient, user: ApiUser) -> None:
    response = client.post(
        "/api/add-git-providers", json={"provider_tokens": {"sourceforge": TOKEN}}, headers=user.headers
    )
    assert "sourceforge" in response.json()["detail"][0]["msg"]


def test_tokens_are_per_user(client: TestClient, database: Database, user: ApiUser, other_user: ApiUser) -> None:
    add(client, user, {"provider_tokens": {"github": TOKEN}})
    add(client, other_user, {"provider_tokens": {"github": {"token": MASK, "host": "a.example.com"}}})
    assert tokens(database, user)["github"] == ProviderCredential(TOKEN, None, None)
    assert tokens(database, other_user)["github"] == ProviderCredential(None, None, "a.example.com")


def test_request_without_a_key_is_a_401(client: TestClient) -> None:
    body = {"provider_tokens": {"github": TOKEN}}
    for headers in ({}, {"Authorization": "Bearer aw_wrong"}):
        assert client.post("/api/add-git-providers", json=body, headers=headers).status_code == 401
