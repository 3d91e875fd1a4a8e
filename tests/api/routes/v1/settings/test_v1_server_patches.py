"""Changes of single MCP servers: V1's merge patch, as the web page sends it."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.users import settings_store
from tests.api.routes.v1.settings.test_v1_servers import LISTS, SERVERS
from tests.api.routes.v1.settings.v1 import MASK, PATH, agent, load, post, read
from tests.factories import VAULT, ApiUser

DOCS, NEWS = SERVERS["docs"], SERVERS["news"]
# Fields of V1 that are stored beside those of the lists.
REMOTE = {
    "enabled": False,
    "description": "text",
    "icon": "i",
    "timeout": 5,
    "sse_read_timeout": 60,
    "keep_alive": True,
}
PROCESS = {"enabled": False, "description": "text", "icon": "i", "timeout": 5, "cwd": "/workspace"}


@pytest.fixture(autouse=True)
def stored(client: TestClient, user: ApiUser) -> None:
    post(client, user, agent(mcp_config=SERVERS))


def patch(client: TestClient, user: ApiUser, **servers: Any) -> None:
    post(client, user, agent(mcp_config=servers))


def servers_of(database: Database, user: ApiUser) -> dict[str, Any]:
    found = load(database, user).mcp_config
    assert found is not None
    return {server["name"]: server for servers in found.values() for server in servers}


def test_new_server_leaves_the_others_unchanged(client: TestClient, database: Database, user: ApiUser) -> None:
    patch(client, user, more={"transport": "http", "url": "https://more.example.com"})
    more = {"name": "more", "url": "https://more.example.com", "api_key": None}
    assert load(database, user).mcp_config == LISTS | {"shttp_servers": [*LISTS["shttp_servers"], more]}


def test_null_removes_a_server(client: TestClient, database: Database, user: ApiUser) -> None:
    patch(client, user, files=None, unknown=None)
    assert load(database, user).mcp_config == LISTS | {"stdio_servers": []}


def test_change_keeps_fields_that_it_does_not_name(client: TestClient, database: Database, user: ApiUser) -> None:
    patch(client, user, files={"transport": "stdio", "command": "npx", "args": ["-y", "more"]})
    patch(client, user, news={"description": "text"}, docs={"timeout": None})
    assert load(database, user).mcp_config == {
        "sse_servers": [LISTS["sse_servers"][0] | {"description": "text"}],
        "stdio_servers": [LISTS["stdio_servers"][0] | {"args": ["-y", "more"]}],
        "shttp_servers": [{"name": "docs", "url": DOCS["url"], "api_key": "auth-plain"}],
    }


def test_server_is_renamed(client: TestClient, database: Database, user: ApiUser) -> None:
    patch(client, user, news=None, paper=NEWS)
    assert servers_of(database, user)["paper"] == LISTS["sse_servers"][0] | {"name": "paper"}
    assert "news" not in servers_of(database, user)


def test_null_removes_headers_variables_and_arguments(client: TestClient, database: Database, user: ApiUser) -> None:
    patch(client, user, news={"headers": {"X-New": "new", "X-Key": None}}, files={"env": {"TOKEN": None}, "args": None})
    assert servers_of(database, user)["news"]["headers"] == {"X-New": "new"}
    assert servers_of(database, user)["files"] == {"name": "files", "command": "npx", "env": {}}
    patch(client, user, news={"headers": None}, docs={"auth": None})
    assert "headers" not in servers_of(database, user)["news"]
    assert servers_of(database, user)["docs"]["api_key"] is None


def test_servers_of_a_response_can_be_sent_back_unchanged(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    patch(client, user, docs={"url": "https://u:p@docs.example.com/mcp?key=1"})
    before = load(database, user).mcp_config
    patch(client, user, **read(client, user)["agent_settings"]["mcp_config"])
    assert load(database, user).mcp_config == before


def test_server_that_moves_keeps_the_key_behind_its_mask(client: TestClient, database: Database, user: ApiUser) -> None:
    shown = read(client, user)["agent_settings"]["mcp_config"]["docs"]
    for url, auth in (("https://one.example.com", shown["auth"]), ("https://two.example.com", MASK)):
        patch(client, user, docs={"url": url, "auth": auth})
        assert servers_of(database, user)["docs"].items() >= {"url": url, "api_key": "auth-plain"}.items()


def test_new_authorization_of_a_server_replaces_the_old_one(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    patch(client, user, docs={"headers": {"Authorization": "Bearer new", "X-Team": "t"}})
    assert servers_of(database, user)["docs"]["api_key"] is None
    patch(client, user, docs={"auth": {"strategy": "bearer", "value": "newer"}})
    assert servers_of(database, user)["docs"].items() >= {"api_key": "newer", "headers": {"X-Team": "t"}}.items()


def test_server_without_headers_has_no_authorization(client: TestClient, database: Database, user: ApiUser) -> None:
    """The web page sends this, without `auth`, when its user removes the authorization of a server."""
    patch(client, user, docs={"transport": "http", "url": DOCS["url"], "headers": None})
    assert servers_of(database, user)["docs"]["api_key"] is None
    patch(client, user, docs={"headers": None, "auth": "newer"})
    assert servers_of(database, user)["docs"]["api_key"] == "newer"


def test_server_is_changed_to_a_command_and_back(client: TestClient, database: Database, user: ApiUser) -> None:
    patch(client, user, docs={"transport": "stdio", "command": "npx"})
    patch(client, user, files={"url": "https://files.example.com/sse"})
    found = load(database, user).mcp_config
    assert found is not None
    assert found["stdio_servers"] == [{"name": "docs", "command": "npx", "env": {}, "timeout": 9}]
    files = {"name": "files", "url": "https://files.example.com/sse", "api_key": None}
    assert found["sse_servers"] == [files, LISTS["sse_servers"][0]]


def test_servers_without_a_name_are_changed_by_the_name_they_are_shown_with(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    urls = ["https://a.example.com", "https://b.example.com"]
    post(client, user, {"mcp_config": {"shttp_servers": [{"url": url, "api_key": "plain"} for url in urls]}})
    patch(client, user, shttp=None)
    assert servers_of(database, user) == {"shttp_2": {"name": "shttp_2", "url": urls[1], "api_key": "plain"}}


@pytest.mark.parametrize(("name", "fields"), [("docs", REMOTE), ("files", PROCESS)])
def test_other_fields_of_v1_are_stored_and_shown(
    client: TestClient, user: ApiUser, name: str, fields: dict[str, Any]
) -> None:
    patch(client, user, **{name: fields})
    assert read(client, user)["agent_settings"]["mcp_config"][name].items() >= fields.items()
    # A client that sends the lists back keeps these fields.
    lists = read(client, user, "/api/settings")["mcp_config"]
    post(client, user, {"mcp_config": lists}, "/api/settings")
    assert read(client, user)["agent_settings"]["mcp_config"][name].items() >= fields.items()
    patch(client, user, **{name: {"enabled": None, "description": None}})
    assert fields.keys() - read(client, user)["agent_settings"]["mcp_config"][name].keys() == {"enabled", "description"}


@pytest.mark.parametrize(
    ("servers", "text"),
    [
        ({"new": {"description": "text"}}, "neither a URL nor a command"),
        ({"new": {}}, "neither a URL nor a command"),
        ({"docs": {"url": None}}, "neither a URL nor a command"),
        ({"docs": {"transport": "stdio"}}, "transport"),
        ({"new": {"transport": "http", "url": DOCS["url"]}}, "same URL"),
        ({"new": {"url": "https://new.example.com", "auth": MASK}}, "mask"),
        ({"news": {"headers": {"X-New": MASK}}}, "mask"),
        ({"news": {"headers": {f"X-{number}": "x" for number in range(50)}}}, "at most 50 headers"),
        ({f"s{number}": {"url": f"https://{number}.example.com"} for number in range(100)}, "at most 100"),
    ],
)
def test_patch_that_leaves_a_server_unusable_is_refused(
    client: TestClient, database: Database, user: ApiUser, servers: dict[str, Any], text: str
) -> None:
    response = client.post(PATH, json=agent(mcp_config={"files": None, **servers}), headers=user.headers)
    assert (response.status_code, text in response.json()["detail"]) == (400, True), response.text
    assert load(database, user).mcp_config == LISTS


def test_environment_of_a_command_has_a_limited_number_of_variables(client: TestClient, user: ApiUser) -> None:
    more = {f"E{number}": "x" for number in range(100)}
    response = client.post(PATH, json=agent(mcp_config={"files": {"env": more}}), headers=user.headers)
    assert (response.status_code, "at most 100 variables" in response.json()["detail"]) == (400, True), response.text
    patch(client, user, files={"env": dict.fromkeys(more) | {"E0": "x"}})


BOTH: list[dict[str, Any]] = [
    agent(mcp_config={"docs": {"auth": "new", "headers": {"authorization": "Bearer new"}}}),
    {"mcp_config": {"more": {"url": "https://more.example.com", "auth": "a", "headers": {"Authorization": "b"}}}},
    {
        "mcp_config": {
            "sse_servers": [{"url": "https://c.example.com", "api_key": "a", "headers": {"Authorization": "b"}}]
        }
    },
]


@pytest.mark.parametrize("body", BOTH, ids=("patch", "map", "lists"))
def test_server_with_two_authorizations_is_refused(
    client: TestClient, database: Database, user: ApiUser, body: dict[str, Any]
) -> None:
    """The agent server refuses it, so each start would fail."""
    before = load(database, user).mcp_config
    response = client.post("/api/v1/settings", json=body, headers=user.headers)
    assert (response.status_code, "authorization" in response.json()["detail"]) == (400, True)
    assert load(database, user).mcp_config == before


def test_key_in_a_list_replaces_a_stored_authorization(client: TestClient, database: Database, user: ApiUser) -> None:
    patch(client, user, docs={"headers": {"Authorization": "Bearer old", "X-Team": "t"}})
    entry = {"url": servers_of(database, user)["docs"]["url"], "api_key": "new"}
    post(client, user, {"mcp_config": {"shttp_servers": [entry]}})
    assert servers_of(database, user)["docs"].items() >= {"api_key": "new", "headers": {"X-Team": "t"}}.items()


def test_server_with_two_authorizations_of_an_earlier_version_prevents_no_change(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    """A client that returns what it read must not fail, above all if that server is switched off."""
    old = {"url": "https://old.example.com", "api_key": "a", "headers": {"Authorization": "b"}, "enabled": False}
    with database.transaction() as session, settings_store.editing(session, VAULT, user.id) as draft:
        draft.sealed["mcp_config"]["sse_servers"].append(old)
    patch(client, user, docs={"timeout": 7})
    post(client, user, {"mcp_config": read(client, user)["mcp_config"]})
    found = load(database, user).mcp_config or {}
    assert found["sse_servers"][-1].items() >= old.items()
