"""MCP servers in the settings of V1: a map or lists."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from tests.api.routes.v1.settings.v1 import MASK, PATH, agent, load, post, read
from tests.factories import ApiUser

SERVERS: dict[str, dict[str, Any]] = {
    "docs": {"transport": "http", "url": "https://docs.example.com/mcp", "auth": "auth-plain", "timeout": 9},
    "news": {"transport": "sse", "url": "https://news.example.com", "headers": {"X-Key": "header-plain"}},
    "files": {"transport": "stdio", "command": "npx", "args": ["-y"], "env": {"TOKEN": "env-plain"}},
}


# How V1 shows a key: a credential of the agent SDK.
MASKED = {"auth": {"strategy": "bearer", "value": MASK}}
# The operations that accept servers under the flat name.
FLAT = (PATH, "/api/settings", "/api/add-git-providers", "/api/v1/secrets/git-providers")
LISTS: dict[str, list[dict[str, Any]]] = {
    "sse_servers": [
        {"name": "news", "url": "https://news.example.com", "api_key": None, "headers": {"X-Key": "header-plain"}}
    ],
    "stdio_servers": [{"name": "files", "command": "npx", "args": ["-y"], "env": {"TOKEN": "env-plain"}}],
    "shttp_servers": [{"name": "docs", "url": "https://docs.example.com/mcp", "api_key": "auth-plain", "timeout": 9}],
}


def test_servers_are_a_map_or_lists(client: TestClient, database: Database, user: ApiUser) -> None:
    for sent in (SERVERS, {"mcpServers": SERVERS}):
        post(client, user, {"mcp_config": None})
        post(client, user, agent(mcp_config=sent))
        assert load(database, user).mcp_config == LISTS
    response = client.get(PATH, headers=user.headers)
    assert "plain" not in response.text
    shown = response.json()
    assert list(shown["agent_settings"]["mcp_config"]) == ["files", "news", "docs"]
    assert shown["agent_settings"]["mcp_config"]["docs"] == SERVERS["docs"] | MASKED
    assert shown["mcp_config"]["shttp_servers"] == [LISTS["shttp_servers"][0] | {"api_key": MASK}]
    for body in ({"mcp_config": shown["mcp_config"]}, agent(mcp_config=shown["agent_settings"]["mcp_config"])):
        post(client, user, body)
        assert load(database, user).mcp_config == LISTS


@pytest.mark.parametrize("seconds", [30, 30.0, 1.5])
def test_timeouts_are_numbers_of_seconds(client: TestClient, user: ApiUser, seconds: float) -> None:
    sent = {"docs": SERVERS["docs"] | {"timeout": seconds}}
    post(client, user, agent(mcp_config=sent))
    shown = read(client, user)
    assert shown["agent_settings"]["mcp_config"]["docs"]["timeout"] == seconds
    [listed] = shown["mcp_config"]["shttp_servers"]
    assert listed["timeout"] == seconds
    post(client, user, {"mcp_config": {"shttp_servers": [listed]}}, "/api/settings")
    assert read(client, user)["mcp_config"]["shttp_servers"][0]["timeout"] == seconds


@pytest.mark.parametrize("path", FLAT)
def test_map_under_the_flat_name_is_merged(client: TestClient, database: Database, user: ApiUser, path: str) -> None:
    old = {"url": "https://old.example.com", "api_key": "old-plain"}
    moved = {"url": "https://docs.example.com/mcp?key=other", "api_key": "other"}
    by_name = {"name": "files", "command": "old"}
    lists = {"sse_servers": [old], "shttp_servers": [moved], "stdio_servers": [by_name]}
    post(client, user, {"mcp_config": lists}, "/api/settings")
    docs = SERVERS["docs"] | {"url": "https://docs.example.com/mcp?key=new"}
    for sent in ({"docs": docs}, {"files": SERVERS["files"], "news": SERVERS["news"]}):
        response = client.post(path, json={"mcp_config": sent}, headers=user.headers)
        assert response.status_code == 200, response.text
    assert load(database, user).mcp_config == LISTS | {
        "sse_servers": [old, *LISTS["sse_servers"]],
        "shttp_servers": [LISTS["shttp_servers"][0] | {"url": docs["url"]}],
    }


@pytest.mark.parametrize("path", FLAT)
def test_lists_are_replaced(client: TestClient, database: Database, user: ApiUser, path: str) -> None:
    post(client, user, agent(mcp_config=SERVERS))
    assert client.post(path, json={"mcp_config": {"sse_servers": []}}, headers=user.headers).status_code == 200
    assert load(database, user).mcp_config == {name: [] for name in LISTS}


def test_repeated_maps_do_not_exceed_the_server_limit(client: TestClient, user: ApiUser) -> None:
    def servers(first: int) -> dict[str, Any]:
        return {f"s{number}": {"url": f"https://{number}.example.com"} for number in range(first, first + 60)}

    post(client, user, {"mcp_config": servers(0)})
    assert client.post(PATH, json={"mcp_config": servers(60)}, headers=user.headers).status_code == 400
    assert len(read(client, user)["agent_settings"]["mcp_config"]) == 60


@pytest.mark.parametrize("path", FLAT)
@pytest.mark.parametrize(
    "sent", [{"a": 1}, {"a": {}}, {"a": {"url": "nowhere"}}, {"a": []}, {"sse_servers": [], "a": {}}]
)
def test_map_of_invalid_servers_is_refused(
    client: TestClient, database: Database, user: ApiUser, path: str, sent: Any
) -> None:
    post(client, user, agent(mcp_config=SERVERS))
    response = client.post(path, json={"mcp_config": sent}, headers=user.headers)
    assert (response.status_code, response.json()["detail"][0]["loc"][:2]) == (422, ["body", "mcp_config"])
    assert load(database, user).mcp_config == LISTS


def test_change_by_lists_keeps_the_fields_of_the_map(client: TestClient, database: Database, user: ApiUser) -> None:
    post(client, user, agent(mcp_config=SERVERS))
    known = {"sse_servers": [{"url": "https://news.example.com", "api_key": "new"}]}
    post(client, user, {"mcp_config": known}, "/api/settings")
    servers = load(database, user).mcp_config
    assert servers is not None
    assert servers["sse_servers"] == [LISTS["sse_servers"][0] | {"api_key": "new"}]


@pytest.mark.parametrize("nothing", [{}, None, {"mcpServers": {}}])
def test_all_servers_can_be_removed_at_once(client: TestClient, user: ApiUser, nothing: Any) -> None:
    post(client, user, agent(mcp_config=SERVERS))
    post(client, user, agent(mcp_config=nothing))
    assert read(client, user)["agent_settings"]["mcp_config"] == {}


def test_all_servers_below_their_former_name_replace_the_stored_ones(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    post(client, user, agent(mcp_config=SERVERS))
    kept = SERVERS["docs"] | MASKED
    post(client, user, agent(mcp_config={"mcpServers": {"docs": kept}}))
    assert load(database, user).mcp_config == LISTS | {"sse_servers": [], "stdio_servers": []}


def test_server_of_a_map_has_the_headers_of_the_map_only(client: TestClient, database: Database, user: ApiUser) -> None:
    news = {"transport": "sse", "url": "https://news.example.com"}
    for body in (agent(mcp_config={"mcpServers": {"news": news}}), {"mcp_config": {"news": news}}):
        post(client, user, agent(mcp_config={"news": SERVERS["news"]}))
        post(client, user, body)
        assert "header-plain" not in str(load(database, user).mcp_config)


def test_null_removes_the_headers_of_a_server_in_the_lists(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    post(client, user, agent(mcp_config=SERVERS))
    entry = {"url": "https://news.example.com", "headers": None}
    post(client, user, {"mcp_config": {"sse_servers": [entry]}}, "/api/settings")
    servers = load(database, user).mcp_config
    assert servers is not None
    assert servers["sse_servers"] == [{"name": "news", "url": "https://news.example.com", "api_key": None}]


@pytest.mark.parametrize(
    ("url", "listed"), [("https://a.example.com/sse", "sse_servers"), ("https://a.example.com/mcp", "shttp_servers")]
)
def test_missing_transport_of_a_server_is_inferred(client: TestClient, user: ApiUser, url: str, listed: str) -> None:
    post(client, user, agent(mcp_config={"a": {"url": url}}))
    assert [server["url"] for server in read(client, user)["mcp_config"][listed]] == [url]
