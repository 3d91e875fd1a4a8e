"""POST and GET /api/settings: every field, what is kept, what is masked, what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import inspect
from sqlmodel import text

from api.schemas.settings import SettingsUpdate
from shared.database import Database
from shared.store import secrets, user_settings
from shared.user_settings import StoredSettings
from tests.factories import VAULT, Person

MASK = "**********"
LLM_KEY, SEARCH_KEY, SANDBOX_KEY = "sk-llm-plain", "tvly-search-plain", "sandbox-plain"
SSE_KEY, SHTTP_KEY, ENV_VALUE, URL_VALUE = "sse-plain", "shttp-plain", "env-plain", "url-plain"
TOKEN, SECRET = "ghp-token-plain", "custom-plain"
SECRETS = [LLM_KEY, SEARCH_KEY, SANDBOX_KEY, SSE_KEY, SHTTP_KEY, ENV_VALUE, URL_VALUE, TOKEN, SECRET]

OPEN: dict[str, Any] = {
    "language": "en",
    "agent": "CodeActAgent",
    "max_iterations": 42,
    "security_analyzer": "llm",
    "confirmation_mode": True,
    "llm_model": "openai/gpt-4o",
    "llm_base_url": "https://llm.example.com/v1",
    "remote_runtime_resource_factor": 2,
    "enable_default_condenser": False,
    "condenser_max_size": 80,
    "enable_sound_notifications": True,
    "enable_proactive_conversation_starters": False,
    "enable_solvability_analysis": False,
    "user_consents_to_analytics": False,
    "sandbox_base_container_image": "debian:12",
    "sandbox_runtime_container_image": "ghcr.io/openhands/agent-server:1",
    "max_budget_per_task": 2.5,
    "email": "alice@example.com",
    "email_verified": True,
    "git_user_name": "Alice Ünal",
    "git_user_email": "alice@git.example.com",
}
KEYS = {"llm_api_key": LLM_KEY, "search_api_key": SEARCH_KEY, "sandbox_api_key": SANDBOX_KEY}
MCP = {
    "sse_servers": [{"url": f"https://sse.example.com/a?api_key={URL_VALUE}&v=1", "api_key": SSE_KEY}],
    "stdio_servers": [{"name": "files", "command": "npx", "args": ["-y", "files"], "env": {"TOKEN": ENV_VALUE}}],
    "shttp_servers": [{"url": "https://shttp.example.com", "api_key": SHTTP_KEY, "timeout": 30}],
}
MASKED_MCP = {
    "sse_servers": [{"url": f"https://sse.example.com/a?api_key={MASK}&v=1", "api_key": MASK}],
    "stdio_servers": [{"name": "files", "command": "npx", "args": ["-y", "files"], "env": {"TOKEN": MASK}}],
    "shttp_servers": [{"url": "https://shttp.example.com", "api_key": MASK, "timeout": 30}],
}
JSON = {"Content-Type": "application/json"}
STORE = {
    "provider_tokens": {"github": {"token": TOKEN, "user_id": "7", "host": "github.example.com"}},
    "custom_secrets": {"DEPLOY_KEY": {"secret": SECRET, "description": "for deploys"}},
}
FULL = {**OPEN, **KEYS, "mcp_config": MCP, "secrets_store": STORE}
DEFAULTS = {
    **dict.fromkeys(OPEN),
    "enable_default_condenser": True,
    "enable_sound_notifications": False,
    "enable_proactive_conversation_starters": True,
    "enable_solvability_analysis": True,
}


def store(client: TestClient, person: Person, body: Any) -> None:
    answer = client.post("/api/settings", json=body, headers=person.headers)
    assert (answer.status_code, answer.json()) == (200, {"message": "Settings stored"})


def read(client: TestClient, person: Person) -> dict[str, Any]:
    answer = client.get("/api/settings", headers=person.headers)
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def load(database: Database, person: Person) -> StoredSettings:
    with database.reading() as session:
        stored = user_settings.load(session, VAULT, person.id)
    assert stored is not None
    return stored


def raw_store(database: Database) -> str:
    """All that a thief of the database would hold."""
    with database.reading() as session:
        names = inspect(session.connection()).get_table_names()
        rows = [
            tuple(row)  # a Row's own repr leaves out the middle of long values
            for name in names
            for row in session.connection().execute(text(f'SELECT * FROM "{name}"'))
        ]
    files = Path(database.engine.url.database or "/").parent.glob("test.db*")
    return repr(rows) + "".join(path.read_bytes().decode("latin-1") for path in files)


def test_before_anything_is_stored_there_is_nothing(client: TestClient, user: Person) -> None:
    answer = client.get("/api/settings", headers=user.headers)
    assert answer.status_code == 404
    assert answer.json() == {"detail": "Settings not found", "error": "Settings not found"}


def test_every_field_comes_back_with_the_secrets_masked(client: TestClient, user: Person) -> None:
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


def test_an_empty_body_stores_the_defaults(client: TestClient, user: Person) -> None:
    store(client, user, {})
    assert read(client, user) == {
        **DEFAULTS,
        **dict.fromkeys(KEYS),
        **dict.fromkeys((f"{name}_set" for name in KEYS), False),
        "mcp_config": None,
        "secrets_store": {"provider_tokens": {}, "custom_secrets": {}},
        "provider_tokens_set": {},
    }


def test_the_worker_reads_every_value_in_clear(client: TestClient, database: Database, user: Person) -> None:
    store(client, user, FULL)
    stored = load(database, user)
    assert stored.model_dump(include=set(FULL)) == {**OPEN, **KEYS, "mcp_config": MCP}
    assert not [secret for secret in SECRETS if secret in f"{stored!r} {stored}"]


def test_one_field_changes_only_that_field(client: TestClient, database: Database, user: Person) -> None:
    store(client, user, FULL)
    expected = read(client, user)
    for name, value in OPEN.items():
        changed = {bool: not value, int: 77, float: 0.5, str: "other"}[type(value)]
        store(client, user, {name: changed})
        expected[name] = changed
        assert read(client, user) == expected
    assert load(database, user).llm_api_key == LLM_KEY


def test_null_is_the_default_except_where_it_keeps(client: TestClient, database: Database, user: Person) -> None:
    store(client, user, FULL)
    store(client, user, dict.fromkeys(FULL))
    kept = ("llm_model", "llm_base_url", "user_consents_to_analytics")
    assert read(client, user).items() >= {**DEFAULTS, **{name: OPEN[name] for name in kept}}.items()
    stored = load(database, user)
    assert (stored.llm_api_key, stored.search_api_key, stored.sandbox_api_key) == (LLM_KEY, SEARCH_KEY, SANDBOX_KEY)
    assert stored.mcp_config is None
    # Secrets and tokens have their own life: no null takes them away.
    assert read(client, user)["provider_tokens_set"] == {"github": "github.example.com"}
    assert set(read(client, user)["secrets_store"]["custom_secrets"]) == {"DEPLOY_KEY"}


@pytest.mark.parametrize("name", KEYS)
def test_a_mask_keeps_a_key_and_an_empty_text_clears_it(
    client: TestClient, database: Database, user: Person, name: str
) -> None:
    store(client, user, {name: MASK})
    assert getattr(load(database, user), name) is None
    store(client, user, KEYS)
    store(client, user, {name: MASK})
    assert getattr(load(database, user), name) == KEYS[name]
    store(client, user, {name: ""})
    assert read(client, user)[f"{name}_set"] is False
    assert load(database, user).model_dump().items() >= {**KEYS, name: None}.items()


def test_an_empty_text_clears_the_model_and_its_url(client: TestClient, user: Person) -> None:
    store(client, user, OPEN)
    store(client, user, {"llm_model": "", "llm_base_url": ""})
    found = read(client, user)
    assert (found["llm_model"], found["llm_base_url"]) == (None, None)


def test_what_was_read_can_be_sent_back(client: TestClient, database: Database, user: Person) -> None:
    store(client, user, FULL)
    before, shown = load(database, user), read(client, user)
    store(client, user, shown)
    assert load(database, user) == before
    assert read(client, user).items() >= shown.items()


def test_a_changed_server_keeps_what_is_masked(client: TestClient, database: Database, user: Person) -> None:
    store(client, user, {"mcp_config": MCP})
    sent = json.loads(json.dumps(MASKED_MCP))
    sent["stdio_servers"][0] |= {"args": "run 'two words'", "env": {"TOKEN": MASK, "NEW": "1"}}
    sent["shttp_servers"][0] |= {"timeout": 9}
    sent["shttp_servers"].append({"url": "ws://new.example.com:81/x"})
    store(client, user, {"mcp_config": sent})
    assert load(database, user).mcp_config == {
        "sse_servers": MCP["sse_servers"],
        "stdio_servers": [
            {"name": "files", "command": "npx", "args": ["run", "two words"], "env": {"TOKEN": ENV_VALUE, "NEW": "1"}}
        ],
        "shttp_servers": [
            {"url": "https://shttp.example.com", "api_key": SHTTP_KEY, "timeout": 9},
            {"url": "ws://new.example.com:81/x", "api_key": None},
        ],
    }


def test_a_server_keeps_its_key_when_it_moves_to_another_list(
    client: TestClient, database: Database, user: Person
) -> None:
    store(client, user, {"mcp_config": MCP})
    store(client, user, {"mcp_config": {"shttp_servers": MASKED_MCP["sse_servers"]}})
    assert load(database, user).mcp_config == {
        "sse_servers": [],
        "stdio_servers": [],
        "shttp_servers": MCP["sse_servers"],
    }


@pytest.mark.parametrize(
    "servers",
    [
        {"sse_servers": [{"url": "https://elsewhere.example.com", "api_key": MASK}]},
        {"shttp_servers": [{"url": f"https://{MASK}@sse.example.com"}]},
        {"sse_servers": [{"url": "https://shttp.example.com:8443", "api_key": MASK}]},
        {"stdio_servers": [{"name": "other", "command": "npx", "env": {"TOKEN": MASK}}]},
        {"stdio_servers": [{"name": "files", "command": "npx", "env": {"OTHER": MASK}}]},
    ],
)
def test_a_mask_with_nothing_behind_it_is_refused(client: TestClient, user: Person, servers: dict[str, Any]) -> None:
    store(client, user, {"mcp_config": MCP})
    answer = client.post("/api/settings", json={"language": "fr", "mcp_config": servers}, headers=user.headers)
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("mcp_config: ")
    assert read(client, user).items() >= {"language": None, "mcp_config": MASKED_MCP}.items()


def test_an_environment_may_be_one_text(client: TestClient, database: Database, user: Person) -> None:
    server = {"name": "files", "command": "npx", "env": "A=1, B=x=y"}
    store(client, user, {"mcp_config": {"stdio_servers": [server]}})
    servers = load(database, user).mcp_config
    assert servers is not None
    assert servers["stdio_servers"][0]["env"] == {"A": "1", "B": "x=y"}


def test_secrets_are_added_and_changed_and_never_lost(client: TestClient, user: Person) -> None:
    store(client, user, {"secrets_store": {"custom_secrets": {"A": "1", "B": {"secret": "2", "description": "b"}}}})
    store(client, user, {"secrets_store": {"custom_secrets": {"A": {"description": "a"}, "C": {"secret": MASK}}}})
    assert read(client, user)["secrets_store"]["custom_secrets"] == {
        "A": {"secret": MASK, "description": "a"},
        "B": {"secret": MASK, "description": "b"},
    }


def test_only_what_can_be_a_secret_s_name_is_repeated(client: TestClient, user: Person) -> None:
    sent: tuple[dict[str, Any], ...] = ({"LLM_API_KEY": SECRET}, {f"{SECRET}-": 1, "LLM_API_KEY": SECRET})
    taken, pasted = (
        client.post("/api/settings", json={"secrets_store": {"custom_secrets": named}}, headers=user.headers)
        for named in sent
    )
    assert (taken.status_code, pasted.status_code) == (422, 422)
    assert "LLM_API_KEY" in taken.text
    assert SECRET not in taken.text + pasted.text


def test_a_secret_whose_name_became_reserved_does_not_stop_settings_from_being_sent_back(
    client: TestClient, database: Database, user: Person
) -> None:
    with database.transaction() as session:
        secrets.put_custom_secrets(session, VAULT, user.id, {"LLM_OLD": {"secret": "old"}})
    store(client, user, {"language": "fr"})
    shown = read(client, user)["secrets_store"]
    assert shown["custom_secrets"] == {"LLM_OLD": {"secret": MASK, "description": None}}
    store(client, user, {"secrets_store": shown})
    assert refused(client, user, {"secrets_store": {"custom_secrets": {"LLM_OLD": "new"}}})


def test_more_secrets_than_are_kept_change_nothing(client: TestClient, user: Person) -> None:
    store(client, user, {"secrets_store": {"custom_secrets": {f"S{number}": "x" for number in range(200)}}})
    body = {"language": "fr", "secrets_store": {"custom_secrets": {"ONE_MORE": "x"}}}
    assert client.post("/api/settings", json=body, headers=user.headers).status_code == 400
    assert read(client, user)["language"] is None
    assert "ONE_MORE" not in read(client, user)["secrets_store"]["custom_secrets"]


def test_unknown_fields_are_ignored(client: TestClient, user: Person) -> None:
    body = '{"language": "en", "\\ud800": 1, "agent_settings": {"x": 1}, "user_id": "somebody"}'
    assert client.post("/api/settings", content=body, headers=user.headers | JSON).status_code == 200
    assert read(client, user)["language"] == "en"


def test_the_store_holds_no_secret_in_clear(client: TestClient, database: Database, user: Person) -> None:
    store(client, user, FULL)
    held = raw_store(database)
    assert OPEN["llm_model"] in held
    assert not [secret for secret in [*SECRETS, "sse.example.com", user.key] if secret in held]


def test_no_answer_holds_a_secret(client: TestClient, user: Person) -> None:
    bodies = [FULL, *({"max_iterations": "x", name: value} for name, value in FULL.items())]
    answers = [client.post("/api/settings", json=body, headers=user.headers).text for body in bodies]
    answers.append(client.get("/api/settings", headers=user.headers).text)
    assert not [secret for secret in SECRETS if secret in "".join(answers)]


def test_each_user_has_their_own(client: TestClient, database: Database, user: Person, other_user: Person) -> None:
    store(client, user, FULL)
    assert client.get("/api/settings", headers=other_user.headers).status_code == 404
    store(client, other_user, {"language": "tr", "llm_api_key": MASK})
    found = read(client, other_user)
    assert (found["language"], found["llm_api_key_set"], found["provider_tokens_set"]) == ("tr", False, {})
    assert found["secrets_store"]["custom_secrets"] == {}
    assert load(database, user).model_dump(include=set(FULL)) == {**OPEN, **KEYS, "mcp_config": MCP}


def test_no_key_is_a_401(client: TestClient, user: Person) -> None:
    for headers in ({}, {"X-Session-API-Key": "aw_wrong"}):
        assert client.get("/api/settings", headers=headers).status_code == 401
        assert client.post("/api/settings", json={}, headers=headers).status_code == 401
    assert client.get("/api/settings", headers={"X-Session-API-Key": user.key}).status_code == 404


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
BAD_FIELDS: list[tuple[str, Any]] = [
    *((name, value) for name in TEXTS for value in BAD_TEXTS),
    *((name, value) for name in FLAGS for value in BAD_FLAGS),
    *(("max_iterations", value) for value in BAD_COUNTS),
    *(("remote_runtime_resource_factor", value) for value in (0, True, 1.5, "1", 2**70)),
    *(("condenser_max_size", value) for value in (19, True, "20")),
    *(("max_budget_per_task", value) for value in (-0.1, True, "1", float("nan"), float("inf"), 10**400)),
    *((name, value) for name in KEYS for value in BAD_KEYS),
    *((name, "two\nlines") for name in ("email", "git_user_name", "git_user_email", "language")),
    ("email", "x" * 321),
    *((name, value) for name in ("mcp_config", "secrets_store") for value in BAD_OBJECTS),
]


def test_wrong_types_and_ranges_are_named(client: TestClient, user: Person) -> None:
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
    ({"sse_servers": ["https://a.example.com"]}, ["sse_servers", "0"]),
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
]


def test_wrong_servers_are_named(client: TestClient, user: Person) -> None:
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
]


def test_wrong_secrets_are_named(client: TestClient, user: Person) -> None:
    for sent, where in BAD_STORES:
        assert refused(client, user, {"secrets_store": sent}) == [["body", "secrets_store", *where]], sent
    assert client.get("/api/settings", headers=user.headers).status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [(body, 422) for body in (b"", b"{", b"[]", b"null", b'"x"', b"1", b'{"language": "a\\u0000b"}')]
    + [(b"\xff", 400)],
)
def test_a_body_that_is_no_object_is_refused(client: TestClient, user: Person, body: bytes, status: int) -> None:
    answer = client.post("/api/settings", content=body, headers=user.headers | JSON)
    assert answer.status_code == status
    assert answer.json()["detail"]


def refused(client: TestClient, person: Person, body: dict[str, Any]) -> list[list[str]]:
    """Where a 422 says the errors are; its body is checked on the way."""
    # As any client may write it: NaN and half a surrogate pair included.
    answer = client.post("/api/settings", content=json.dumps(body), headers=person.headers | JSON)
    assert answer.status_code == 422, answer.text
    entries = answer.json()["detail"]
    assert all(set(entry) == {"loc", "msg", "type"} for entry in entries)
    assert all(isinstance(entry["msg"], str) and isinstance(entry["type"], str) for entry in entries)
    return [entry["loc"] for entry in entries]
