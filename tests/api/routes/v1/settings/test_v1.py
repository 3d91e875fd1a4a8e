"""The settings in both shapes of V1: nested and flat."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.models import SandboxSpec
from tests.api.routes.v1.settings.v1 import MASK, PATH, agent, load, post, read, refused
from tests.factories import ApiUser, make_spec

# Flat and nested: a value that is written in one shape is read in the other.
PAIRS: list[tuple[str, tuple[str, ...], Any]] = [
    ("agent", ("agent_settings", "agent"), "BrowsingAgent"),
    ("llm_model", ("agent_settings", "llm", "model"), "openai/gpt-4o"),
    ("llm_base_url", ("agent_settings", "llm", "base_url"), "https://llm.example.com"),
    ("enable_default_condenser", ("agent_settings", "condenser", "enabled"), False),
    ("condenser_max_size", ("agent_settings", "condenser", "max_size"), 80),
    ("max_iterations", ("conversation_settings", "max_iterations"), 7),
    ("confirmation_mode", ("conversation_settings", "confirmation_mode"), True),
    ("security_analyzer", ("conversation_settings", "security_analyzer"), "llm"),
]


def _at(document: dict[str, Any], path: tuple[str, ...]) -> Any:
    for name in path:
        document = document[name]
    return document


def _diff(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path[1:]):
        value = {name: value}
    return {f"{path[0]}_diff": value}


def test_settings_are_a_404_until_some_are_stored(client: TestClient, user: ApiUser) -> None:
    response = client.get(PATH, headers=user.headers)
    assert response.status_code == 404
    assert response.json().items() >= {"detail": "Settings not found", "error": "Settings not found"}.items()


def test_defaults_are_those_of_v1(client: TestClient, user: ApiUser) -> None:
    post(client, user, {})
    found = read(client, user)
    assert found["agent_settings"] == {
        "agent_kind": "openhands",
        "agent": "CodeActAgent",
        "llm": {"model": None, "api_key": None, "base_url": None},
        "condenser": {"enabled": True, "max_size": 240},
        "mcp_config": {},
    }
    assert found["conversation_settings"] == {
        "schema_version": 1,
        "max_iterations": 500,
        "confirmation_mode": False,
        "security_analyzer": "llm",
    }
    # V1's clients take a flat null for the value.
    assert (found["agent"], found["security_analyzer"]) == ("CodeActAgent", "llm")
    assert found["llm_profiles"] == {"profiles": {}, "active": None}
    assert found["sandbox_grouping_strategy"] == "NO_GROUPING"
    assert found["v1_enabled"] is True
    assert (found["llm_model"], found["llm_api_key_set"], found["registered_marketplaces"]) == (None, False, [])


@pytest.mark.parametrize(("flat", "nested", "value"), PAIRS)
def test_settings_written_in_one_shape_are_read_in_both(
    client: TestClient, user: ApiUser, flat: str, nested: tuple[str, ...], value: Any
) -> None:
    for body, path in (({flat: value}, PATH), (_diff(nested, value), PATH), ({flat: value}, "/api/settings")):
        post(client, user, {flat: None} | _diff(nested, None))
        assert read(client, user)[flat] != value
        post(client, user, body, path)
        assert (read(client, user)[flat], _at(read(client, user), nested)) == (value, value)
        assert read(client, user, "/api/settings")[flat] == value


def test_null_in_the_conversations_settings_is_no_analyzer(client: TestClient, user: ApiUser) -> None:
    post(client, user, {"conversation_settings_diff": {"security_analyzer": None}})
    assert read(client, user)["conversation_settings"]["security_analyzer"] == "none"
    post(client, user, {"conversation_settings_diff": {"confirmation_mode": True}})
    assert read(client, user)["conversation_settings"]["security_analyzer"] == "none"


def test_nested_value_takes_precedence_over_the_flat_one(client: TestClient, user: ApiUser) -> None:
    post(client, user, {"llm_model": "flat", **agent(llm={"model": "nested"})})
    assert read(client, user)["llm_model"] == "nested"


def test_diff_changes_only_the_fields_that_it_names(client: TestClient, database: Database, user: ApiUser) -> None:
    post(
        client, user, agent(llm={"model": "m", "api_key": "k", "temperature": 0.5, "seed": 3}, tool_concurrency_limit=2)
    )
    post(client, user, agent(llm={"temperature": 1}, condenser={"keep_first": 4}, verification={"critic_mode": None}))
    assert load(database, user).llm_api_key == "k"
    assert load(database, user).agent_settings == {
        "llm": {"temperature": 1, "seed": 3},
        "condenser": {"keep_first": 4},
        "tool_concurrency_limit": 2,
    }
    post(client, user, agent(llm={"seed": None}, tool_concurrency_limit=None))
    shown = read(client, user)["agent_settings"]
    assert shown["llm"] == {"model": "m", "api_key": None, "base_url": None, "temperature": 1}
    assert shown["condenser"] == {"enabled": True, "max_size": 240, "keep_first": 4}
    assert "tool_concurrency_limit" not in shown


def test_settings_of_tools_and_prompts_are_stored_and_shown(client: TestClient, user: ApiUser) -> None:
    sent: dict[str, Any] = {
        "enable_sub_agents": True,
        "enable_switch_llm_tool": False,
        "tools": [{"name": "terminal", "params": {"a": 1}}],
        "agent_context": {"system_message_suffix": "Be brief.", "user_message_suffix": "Please.", "load_memory": True},
    }
    post(client, user, agent(**sent))
    assert read(client, user)["agent_settings"].items() >= sent.items()
    post(client, user, agent(agent_context={"load_memory": None}, enable_sub_agents=None, tools=[]))
    shown = read(client, user)["agent_settings"]
    assert shown["agent_context"] == {"system_message_suffix": "Be brief.", "user_message_suffix": "Please."}
    assert (shown["tools"], "enable_sub_agents" in shown) == ([], False)


def test_null_clears_a_url_and_keeps_a_key(client: TestClient, database: Database, user: ApiUser) -> None:
    llm = {"model": "m", "api_key": "k", "base_url": "https://llm.example.com"}
    post(client, user, agent(llm=llm))
    post(client, user, agent(llm=dict.fromkeys(llm)))
    stored = load(database, user)
    assert (stored.llm_model, stored.llm_base_url, stored.llm_api_key) == (None, None, "k")
    post(client, user, agent(llm={"api_key": MASK}))
    assert load(database, user).llm_api_key == "k"
    post(client, user, agent(llm={"api_key": ""}))
    assert load(database, user).llm_api_key is None


SECRETS = {
    "aws_access_key_id": "akid-plain",
    "aws_secret_access_key": "aws-plain",
    "aws_session_token": "session-plain",
    "extra_headers": {"X-Key": "header-plain"},
}


def test_secrets_are_masked_and_a_mask_keeps_them(client: TestClient, database: Database, user: ApiUser) -> None:
    post(client, user, agent(llm=SECRETS | {"api_key": "key-plain"}, verification={"critic_api_key": "critic-plain"}))
    shown = client.get(PATH, headers=user.headers)
    assert "plain" not in shown.text
    masked = shown.json()["agent_settings"]
    assert masked["llm"]["aws_secret_access_key"] == MASK
    assert masked["llm"]["extra_headers"] == {"X-Key": MASK}
    post(client, user, agent(llm=masked["llm"], verification=masked["verification"]))
    assert load(database, user).agent_settings == {
        "llm": SECRETS,
        "verification": {"critic_api_key": "critic-plain"},
    }
    post(client, user, agent(llm={"aws_session_token": "", "extra_headers": {"X-Key": None}}))
    assert set(load(database, user).agent_settings["llm"]) == {"aws_access_key_id", "aws_secret_access_key"}


def test_mask_without_a_stored_secret_is_rejected(client: TestClient, user: ApiUser) -> None:
    for diff in (agent(llm={"aws_session_token": MASK}), agent(llm={"extra_headers": {"X-Key": MASK}})):
        response = client.post(PATH, json=diff, headers=user.headers)
        assert (response.status_code, "mask" in response.json()["detail"]) == (400, True)


def test_unknown_spec_is_refused_unless_it_is_already_stored(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    spec = make_spec(database, "image:1")
    assert refused(client, user, {"default_sandbox_spec_id": "nope", "language": "fr"}) == [
        "body.default_sandbox_spec_id"
    ]
    post(client, user, {"default_sandbox_spec_id": spec.id})
    with database.transaction() as session:
        session.delete(session.get_one(SandboxSpec, spec.id))
    post(client, user, {"default_sandbox_spec_id": spec.id, "language": "en"})
    assert read(client, user)["default_sandbox_spec_id"] == spec.id
    post(client, user, {"default_sandbox_spec_id": None})
    assert refused(client, user, {"default_sandbox_spec_id": spec.id}) == ["body.default_sandbox_spec_id"]


def test_other_fields_of_v1_are_stored(client: TestClient, database: Database, user: ApiUser) -> None:
    make_spec(database, "image:1")
    marketplace = {"name": "ours", "source": "github:a/b", "ref": None, "repo_path": None, "auto_load": True}
    sent = {
        "user_version": 3,
        "disabled_skills": ["docker"],
        "git_full_clone": True,
        "v1_enabled": False,
        "sandbox_grouping_strategy": "ADD_TO_ANY",
        "default_sandbox_spec_id": "image:1",
        "title_llm_profile": "quick",
        "registered_marketplaces": [marketplace],
    }
    post(client, user, sent)
    assert (
        read(client, user).items()
        >= (sent | {"registered_marketplaces": [marketplace | {"scope": "personal"}]}).items()
    )


BAD: list[tuple[dict[str, Any], str]] = [
    ({"agent_settings": {}}, "body"),
    ({"conversation_settings": {}}, "body"),
    (agent(agent_kind="acp"), "body.agent_settings_diff.agent_kind"),
    ({"agent_settings_diff": []}, "body.agent_settings_diff"),
    (agent(llm="x"), "body.agent_settings_diff.llm"),
    (agent(llm={"model": 1}), "body.agent_settings_diff.llm.model"),
    *(
        (agent(**{part: {name: "nowhere"}}), f"body.agent_settings_diff.{part}.{name}")
        for part, name in (
            ("llm", "base_url"),
            ("llm", "ollama_base_url"),
            ("llm", "aws_bedrock_runtime_endpoint"),
            ("verification", "critic_server_url"),
        )
    ),
    (agent(llm={"temperature": "hot"}), "body.agent_settings_diff.llm.temperature"),
    (agent(llm={"temperature": float("nan")}), "body.agent_settings_diff.llm.temperature"),
    (agent(llm={"num_retries": -1}), "body.agent_settings_diff.llm.num_retries"),
    (agent(llm={"api_key": "a\nb"}), "body.agent_settings_diff.llm.api_key"),
    (agent(llm={"extra_headers": {"a b": "x"}}), "body.agent_settings_diff.llm.extra_headers"),
    (agent(llm={"litellm_extra_body": {"a": "\ud800"}}), "body.agent_settings_diff.llm.litellm_extra_body"),
    (agent(condenser={"max_size": 1}), "body.agent_settings_diff.condenser.max_size"),
    (agent(tools=[{}]), "body.agent_settings_diff.tools.0.name"),
    (agent(agent_context={"load_memory": 1}), "body.agent_settings_diff.agent_context.load_memory"),
    (agent(mcp_config=[]), "body.agent_settings_diff.mcp_config"),
    (agent(mcp_config={"a": 1}), "body.agent_settings_diff.mcp_config.a"),
    (agent(mcp_config={"sse_servers": []}), "body.agent_settings_diff.mcp_config.sse_servers"),
    (agent(mcp_config={"a b": {"command": "c"}}), "body.agent_settings_diff.mcp_config"),
    (agent(mcp_config={"a": {"transport": "pigeon"}}), "body.agent_settings_diff.mcp_config.a.transport"),
    (agent(mcp_config={"a": {"auth": "oauth"}}), "body.agent_settings_diff.mcp_config.a.auth"),
    (agent(mcp_config={"a": {"timeout": True}}), "body.agent_settings_diff.mcp_config.a.timeout"),
    (agent(mcp_config={"a": {"url": "ftp://a"}}), "body.agent_settings_diff.mcp_config.a.url"),
    (
        agent(mcp_config={"mcpServers": {"a": {"url": "ftp://a"}}}),
        "body.agent_settings_diff.mcp_config.shttp_servers.0.url",
    ),
    ({"conversation_settings_diff": {"max_iterations": 0}}, "body.conversation_settings_diff.max_iterations"),
    ({"conversation_settings_diff": {"security_analyzer": "x"}}, "body.conversation_settings_diff.security_analyzer"),
    ({"sandbox_grouping_strategy": "ALONE"}, "body.sandbox_grouping_strategy"),
    ({"registered_marketplaces": [{"name": "a"}]}, "body.registered_marketplaces.0.source"),
    ({"disabled_skills": "docker"}, "body.disabled_skills"),
    ({"max_iterations": "5"}, "body.max_iterations"),
]


def test_invalid_values_are_named_and_nothing_is_stored(client: TestClient, user: ApiUser) -> None:
    for body, where in BAD:
        assert refused(client, user, body) == [where], body
    assert client.get(PATH, headers=user.headers).status_code == 404


def test_unknown_fields_are_ignored(client: TestClient, user: ApiUser) -> None:
    post(client, user, {"whatever": 1, **agent(whatever=1, llm={"whatever": 1})})
    assert "whatever" not in client.get(PATH, headers=user.headers).text


def test_schema_endpoints_describe_the_settings(client: TestClient, user: ApiUser) -> None:
    for name in ("agent", "conversation"):
        found = read(client, user, f"{PATH}/{name}-schema")
        assert found["model_name"] == f"{name.capitalize()}Settings"
        keys = {field["key"] for section in found["sections"] for field in section["fields"]}
        assert keys >= {".".join(path[1:]) for _, path, _ in PAIRS if path[0] == f"{name}_settings"}
        for section in found["sections"]:
            assert {"key", "label", "variant", "fields"} <= section.keys()
            for field in section["fields"]:
                value = {"string": "s", "integer": 20_000, "number": 0.5, "boolean": True, "object": {}}[
                    field["value_type"]
                ]
                value = "https://a.example.com" if field["key"].endswith("_url") else value
                choices = [choice["value"] for choice in field["choices"]]
                diff = _diff((f"{name}_settings", *field["key"].split(".")), choices[0] if choices else value)
                post(client, user, diff)  # each of them can be set


def test_settings_are_per_user(client: TestClient, user: ApiUser, other_user: ApiUser) -> None:
    post(client, user, agent(llm={"model": "mine"}))
    assert client.get(PATH, headers=other_user.headers).status_code == 404
