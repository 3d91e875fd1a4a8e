"""Invalid settings are refused, with the location of each error."""

from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from httpx import Response

from shared.db.database import Database
from tests.api.routes.v1.settings.stored import JSON, KEYS, OPEN, read, refused, store
from tests.factories import ApiUser, make_spec

LONG = "x" * 10_001


TEXTS = [name for name, value in OPEN.items() if isinstance(value, str)]


FLAGS = [name for name, value in OPEN.items() if isinstance(value, bool)]


BAD_TEXTS: list[Any] = [1, True, {"a": 1}, ["x"], LONG, "\ud800"]


BAD_FLAGS: list[Any] = [0, "true", "yes", [], {}]


BAD_COUNTS: list[Any] = [0, -1, True, 1.5, "5", 2**31, []]


BAD_KEYS: list[Any] = [1, True, {}, ["x"], "x" * 20_001, "a\nb", "\ud800"]


BAD_OBJECTS: list[Any] = [1, "x", [], True]


BAD_ARGS: list[Any] = ["'open", {}, ["x"] * 101, LONG]


BAD_ENVS: list[Any] = ["A", "A=1,B", {"a b": "x"}, {"": "x"}, [], {f"E{number}": "x" for number in range(101)}]


BAD_URLS = ["not a url", "localhost:11434", "ftp://a.example.com", "https://", "https://a:99999", "https://a b", " "]


BAD_FIELDS: list[tuple[str, Any]] = [
    *((name, value) for name in TEXTS for value in BAD_TEXTS),
    *((name, value) for name in FLAGS for value in BAD_FLAGS),
    *(("max_iterations", value) for value in BAD_COUNTS),
    *(("remote_runtime_resource_factor", value) for value in (0, True, 1.5, "1", 2**70)),
    *(("condenser_max_size", value) for value in (19, True, "20")),
    *(("max_budget_per_task", value) for value in (-0.1, True, "1", float("nan"), float("inf"), 10**399)),
    *((name, value) for name in KEYS for value in BAD_KEYS),
    *((name, "two\nlines") for name in ("email", "git_user_name", "git_user_email", "language")),
    ("email", "x" * 321),
    *((name, value) for name in ("mcp_config", "secrets_store") for value in BAD_OBJECTS),
    *(("llm_base_url", url) for url in BAD_URLS),
    ("security_analyzer", "foo"),
    *((name, " \n ") for name in KEYS),
]


def test_wrong_types_and_ranges_are_named(client: TestClient, user: ApiUser) -> None:
    store(client, user, OPEN)
    before = read(client, user)
    for name, value in BAD_FIELDS:
        assert refused(client, user, {"agent": "Other", name: value} | {name: value}) == [["body", name]], (name, value)
    assert read(client, user) == before


def remote(**changes: Any) -> dict[str, Any]:
    return {"sse_servers": [{"url": "https://a.example.com"} | changes]}


def process(**changes: Any) -> dict[str, Any]:
    return {"stdio_servers": [{"name": "a", "command": "b"} | changes]}


BAD_SERVERS: list[tuple[dict[str, Any], list[Any]]] = [
    ({"sse_servers": None}, ["sse_servers"]),
    ({"stdio_servers": {}}, ["stdio_servers"]),
    ({"sse_servers": [["https://a.example.com"]]}, ["sse_servers", "0"]),
    ({"sse_servers": ["a.example.com"]}, ["sse_servers", "0", "url"]),
    ({"shttp_servers": ["https://a.example.com", {"url": "https://a.example.com"}]}, ["shttp_servers"]),
    ({"sse_servers": [{}]}, ["sse_servers", "0", "url"]),
    *(
        (remote(url=url), ["sse_servers", "0", "url"])
        for url in (
            "",
            "a.example.com",
            "ftp://a.example.com",
            "https://",
            "https://a.example.com:port",
            "https://a.example.com:0",
            "https://a b.example.com",
            "https://a.example.com/\n",
            "https://[::1",
            "https://a/" + "x" * 2048,
            1,
        )
    ),
    (remote(api_key=1), ["sse_servers", "0", "api_key"]),
    ({"shttp_servers": [{"url": "https://a.example.com", "timeout": 0}]}, ["shttp_servers", "0", "timeout"]),
    ({"sse_servers": [{"url": "https://a.example.com"}] * 2}, ["sse_servers"]),
    (
        {"sse_servers": [{"url": f"https://a.example.com?key={key}"} for key in "ab"]},
        ["sse_servers"],
    ),
    ({"sse_servers": [{"url": f"https://a.example.com/{number}"} for number in range(101)]}, ["sse_servers"]),
    ({"stdio_servers": [{"name": "a", "command": "b"}] * 2}, ["stdio_servers"]),
    *((process(name=name), ["stdio_servers", "0", "name"]) for name in ("", "a b", "a/b", "a\n", 1)),
    *((process(command=command), ["stdio_servers", "0", "command"]) for command in ("", "a b", "a\n", 1)),
    *((process(args=args), ["stdio_servers", "0", "args"]) for args in BAD_ARGS),
    (process(args=["x", 1]), ["stdio_servers", "0", "args", "1"]),
    *((process(env=env), ["stdio_servers", "0", "env"]) for env in BAD_ENVS),
    (process(env={"A": 1}), ["stdio_servers", "0", "env", "A"]),
    (process(env="A=1," * 12_501), ["stdio_servers"]),
    (
        {"stdio_servers": [{"name": f"s{number}", "command": "b", "args": "x" * 9_000} for number in range(6)]},
        ["stdio_servers"],
    ),
    ({f"s{number}": {"command": "b", "args": "x" * 9_000} for number in range(6)}, ["stdio_servers"]),
]


def test_wrong_servers_are_named(client: TestClient, user: ApiUser) -> None:
    for servers, where in BAD_SERVERS:
        assert refused(client, user, {"mcp_config": servers}) == [["body", "mcp_config", *where]], servers


BAD_STORES: list[tuple[dict[str, Any], list[Any]]] = [
    ({"custom_secrets": []}, ["custom_secrets"]),
    *(({"custom_secrets": {name: "x"}}, ["custom_secrets"]) for name in ("", "1A", "A-B", "A B", "A" * 257, "\ud800")),
    *(
        ({"custom_secrets": {"A": "x", name: "x"}}, ["custom_secrets"])
        for name in ("VSCODE", "worker_1", "LLM_API_KEY")
    ),
    ({"custom_secrets": {"A": 1}}, ["custom_secrets", "A"]),
    ({"custom_secrets": {"A": {"secret": 1}}}, ["custom_secrets", "A", "secret"]),
    ({"custom_secrets": {"A": "é" * (32 * 1024 + 1)}}, ["custom_secrets", "A", "secret"]),
    ({"custom_secrets": {"A": {"description": 1}}}, ["custom_secrets", "A", "description"]),
    ({"custom_secrets": {f"S{number}": "x" for number in range(201)}}, ["custom_secrets"]),
    ({"provider_tokens": {"sourceforge": "x"}}, ["provider_tokens"]),
    ({"provider_tokens": {"github": {"token": []}}}, ["provider_tokens", "github", "token"]),
    ({"provider_tokens": {"github": "   "}}, ["provider_tokens", "github", "token"]),
]


def test_wrong_secrets_are_named(client: TestClient, user: ApiUser) -> None:
    for sent, where in BAD_STORES:
        assert refused(client, user, {"secrets_store": sent}) == [["body", "secrets_store", *where]], sent
    assert client.get("/api/settings", headers=user.headers).status_code == 404


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"1", b'{"language": "a\\u0000b"}', b"\xff"])
def test_body_that_is_not_an_object_is_refused(client: TestClient, user: ApiUser, body: bytes) -> None:
    response = client.post("/api/settings", content=body, headers=user.headers | JSON)
    assert response.status_code == 422
    assert response.json()["detail"]


@pytest.mark.parametrize(
    "condenser",
    [
        {"minimum_progress": 0},
        {"minimum_progress": 1},
        {"hard_context_reset_context_scaling": 1.0},
        {"hard_context_reset_max_retries": 0},
    ],
    ids=str,
)
def test_condenser_that_the_agent_server_refuses_is_refused(
    client: TestClient, user: ApiUser, condenser: dict[str, Any]
) -> None:
    """Each start would fail."""
    body = {"agent_settings_diff": {"condenser": condenser}}
    assert client.post("/api/v1/settings", json=body, headers=user.headers).status_code == 422


def test_condenser_without_events_to_condense_is_refused(client: TestClient, user: ApiUser) -> None:
    def status(max_size: int | None, keep_first: int) -> int:
        body = {"condenser_max_size": max_size, "agent_settings_diff": {"condenser": {"keep_first": keep_first}}}
        return int(client.post("/api/v1/settings", json=body, headers=user.headers).status_code)

    assert [status(20, 9), status(20, 8), status(None, 119), status(None, 118)] == [400, 200, 400, 200]
    small = client.post("/api/settings", json={"condenser_max_size": 20}, headers=user.headers)
    assert (small.status_code, "keep_first" in small.json()["detail"]) == (400, True)
    store(client, user, {"condenser_max_size": 20, "enable_default_condenser": False})
    store(client, user, {"language": "en"})


@pytest.mark.parametrize(("tokens", "status"), [(16_383, 422), (16_384, 200)])
def test_context_window_that_the_agent_server_refuses_is_refused(
    client: TestClient, user: ApiUser, tokens: int, status: int
) -> None:
    """Each start would fail."""
    for response in store_context_window(client, user, tokens):
        assert (response.is_success, "16384" in response.text) == (status == 200, status == 422), response.text


def test_small_context_window_is_stored_if_the_agent_servers_of_a_spec_accept_it(
    client: TestClient, user: ApiUser, database: Database
) -> None:
    make_spec(database, "short:1", position=1, env={"ALLOW_SHORT_CONTEXT_WINDOWS": "True"})
    for response in store_context_window(client, user, 8192):
        assert response.is_success, response.text


def store_context_window(client: TestClient, user: ApiUser, tokens: int) -> Iterator[Response]:
    """Store it in the settings, and in a profile."""
    llm = {"model": "openai/demo", "max_input_tokens": tokens}
    for path, body in (("settings", {"agent_settings_diff": {"llm": llm}}), ("settings/profiles/small", {"llm": llm})):
        yield client.post(f"/api/v1/{path}", json=body, headers=user.headers)
