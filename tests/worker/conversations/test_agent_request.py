"""The body of a conversation's create request."""

import json
from typing import Any

import pytest

from shared.users.secrets import CustomSecret
from tests.worker.conversations.agent_inputs import CONVERSATION, MESSAGE, inputs
from worker.conversations.agent_request import LlmNotConfigured, build_request, plan_path, secret_values


def test_minimal_request_needs_no_network_outside_the_sandbox() -> None:
    assert build_request(inputs()) == {
        "conversation_id": CONVERSATION,
        "workspace": {"kind": "LocalWorkspace", "working_dir": "/workspace/project/app"},
        "agent_settings": {
            "agent_kind": "openhands",
            "llm": {"usage_id": "agent", "stream": True, "model": "openai/gpt", "api_key": "llm-key"},
            "condenser": {"enabled": True},
            "mcp_config": {},
            "agent_context": {
                "load_project_skills": True,
                "load_user_skills": False,
                "load_public_skills": False,
            },
        },
        "confirmation_policy": {"kind": "NeverConfirm"},
        "security_analyzer": {"kind": "LLMSecurityAnalyzer"},
        "max_iterations": 500,
        "secrets": {},
        "tags": {},
        "autotitle": True,
    }


def test_nested_settings_of_v1_are_passed_on() -> None:
    nested: dict[str, Any] = {
        "llm": {"temperature": 0.2, "aws_secret_access_key": "aws-plain", "extra_headers": {"X-Team": "team-plain"}},
        "condenser": {"keep_first": 4},
        "verification": {"critic_enabled": True, "critic_api_key": "critic-plain"},
        "tool_concurrency_limit": 2,
    }
    remote = {"url": "http://a/", "name": "docs", "headers": {"X-Key": "header-plain"}}
    inputs_ = inputs(agent_settings=nested, mcp_config={"shttp_servers": [remote]})
    settings = build_request(inputs_)["agent_settings"]
    assert settings["llm"] == {
        **nested["llm"],
        "usage_id": "agent",
        "stream": True,
        "model": "openai/gpt",
        "api_key": "llm-key",
    }
    assert settings["condenser"] == {"keep_first": 4, "enabled": True}
    assert (settings["verification"], settings["tool_concurrency_limit"]) == (nested["verification"], 2)
    assert settings["mcp_config"] == {
        "docs": {"transport": "http", "url": "http://a/", "headers": {"X-Key": "header-plain"}}
    }
    assert {"aws-plain", "team-plain", "critic-plain", "header-plain"} <= set(secret_values(inputs_))
    assert "plain" not in repr(inputs_)


def test_other_fields_of_servers_are_passed_on_and_disabled_servers_are_omitted() -> None:
    fields = {"description": "text", "sse_read_timeout": 60, "keep_alive": True, "enabled": True}
    servers = {
        "sse_servers": [{"url": "http://a/", "name": "docs", **fields}, {"url": "http://b/", "enabled": False}],
        "stdio_servers": [{"name": "files", "command": "npx", "cwd": "/workspace", "enabled": False}],
    }
    assert build_request(inputs(mcp_config=servers))["agent_settings"]["mcp_config"] == {
        "docs": {"transport": "sse", "url": "http://a/", **fields}
    }


def test_every_setting_is_in_the_request() -> None:
    body = build_request(
        inputs(
            llm_base_url="http://llm:4000/v1",
            max_iterations=7,
            confirmation_mode=True,
            security_analyzer="llm",
            enable_default_condenser=False,
            condenser_max_size=80,
            mcp_config={
                "sse_servers": [{"url": "http://sse/", "api_key": "sse-key"}],
                "shttp_servers": [{"url": "http://a/", "api_key": None}, {"url": "http://b/", "timeout": 9}],
                "stdio_servers": [
                    {"name": "files", "command": "npx", "args": ["-y"], "env": {"K": "stdio-key"}},
                    {"name": "files", "command": "uvx", "args": [], "env": None},
                ],
            },
            search_api_key="search-key",
            secrets={"DEPLOY_KEY": CustomSecret("stored-value", "for deploys")},
            provider_tokens={"github": "gh-token", "azure_devops": "az-token"},
            user_id="u1",
            requested_model="anthropic/opus",
            requested_secrets={"REQUESTED": "requested-value"},
            initial_message=MESSAGE,
            system_message_suffix="Be brief.",
            plugins=[
                {"source": "github:a/b", "ref": "v1", "repo_path": None, "parameters": {"depth": 3}},
                {"source": "github:c/d", "ref": None, "repo_path": "p", "parameters": None},
            ],
            title="A title",
            tags={"team": "blue", "repo_name": "not for the agent server", "long": "x" * 257},
        )
    )
    settings = body["agent_settings"]
    assert settings["llm"] == {
        "usage_id": "agent",
        "stream": True,
        "model": "anthropic/opus",
        "api_key": "llm-key",
        "base_url": "http://llm:4000/v1",
    }
    assert settings["condenser"] == {"enabled": False, "max_size": 80}
    assert settings["agent_context"]["system_message_suffix"] == "Be brief."
    assert settings["mcp_config"] == {
        "files": {"transport": "stdio", "command": "npx", "args": ["-y"], "env": {"K": "stdio-key"}},
        "files_2": {"transport": "stdio", "command": "uvx", "args": []},
        "sse": {"transport": "sse", "url": "http://sse/", "auth": {"strategy": "bearer", "value": "sse-key"}},
        "shttp": {"transport": "http", "url": "http://a/"},
        "shttp_2": {"transport": "http", "url": "http://b/", "timeout": 9},
        "tavily": {
            "transport": "http",
            "url": "https://mcp.tavily.com/mcp/",
            "auth": {"strategy": "bearer", "value": "search-key"},
        },
    }
    assert body["secrets"] == {
        "GITHUB_TOKEN": {"kind": "StaticSecret", "value": "gh-token", "description": "Token for github"},
        "AZURE_DEVOPS_TOKEN": {
            "kind": "StaticSecret",
            "value": "az-token",
            "description": "Token for azure_devops",
        },
        "DEPLOY_KEY": {"kind": "StaticSecret", "value": "stored-value", "description": "for deploys"},
        "REQUESTED": {"kind": "StaticSecret", "value": "requested-value", "description": None},
    }
    assert body["initial_message"] == {
        "role": "user",
        "content": [
            {"type": "text", "text": "fix the bug"},
            {"type": "text", "text": "Parameters of the plugin github:a/b:\n- depth: 3"},
        ],
        "run": True,
    }
    assert body["plugins"] == [
        {"source": "github:a/b", "ref": "v1"},
        {"source": "github:c/d", "repo_path": "p"},
    ]
    assert body["max_iterations"] == 7
    assert body["autotitle"] is False
    assert body["tags"] == {"team": "blue"}
    assert body["user_id"] == "u1"
    json.dumps(body)


@pytest.mark.parametrize(
    ("confirmation_mode", "security_analyzer", "policy", "analyzer"),
    [
        (False, None, "NeverConfirm", {"kind": "LLMSecurityAnalyzer"}),
        (False, "none", "NeverConfirm", None),
        (False, "llm", "NeverConfirm", {"kind": "LLMSecurityAnalyzer"}),
        (True, "llm", "ConfirmRisky", {"kind": "LLMSecurityAnalyzer"}),
        (True, None, "ConfirmRisky", {"kind": "LLMSecurityAnalyzer"}),
        (True, "none", "AlwaysConfirm", None),
        (True, "invariant", "AlwaysConfirm", None),
    ],
)
def test_confirmation_policy_and_analyzer_follow_the_settings(
    confirmation_mode: bool, security_analyzer: str | None, policy: str, analyzer: dict[str, str] | None
) -> None:
    body = build_request(inputs(confirmation_mode=confirmation_mode, security_analyzer=security_analyzer))
    assert body["confirmation_policy"] == {"kind": policy}
    assert body.get("security_analyzer") == analyzer


def test_secret_of_the_request_precedes_a_stored_secret_and_a_token() -> None:
    body = build_request(
        inputs(
            provider_tokens={"github": "token", "gitlab": "token"},
            secrets={"GITHUB_TOKEN": CustomSecret("stored", None), "GITLAB_TOKEN": CustomSecret("stored", None)},
            requested_secrets={"GITHUB_TOKEN": "requested"},
        )
    )
    values = {name: secret["value"] for name, secret in body["secrets"].items()}
    assert values == {"GITHUB_TOKEN": "requested", "GITLAB_TOKEN": "stored"}


def test_planning_agent_may_write_only_its_plan() -> None:
    body = build_request(inputs(agent_type="plan", system_message_suffix="Be brief."))
    path = "/workspace/project/app/.agents_tmp/PLAN.md"
    assert body["agent_settings"]["tools"] == [
        {"name": "glob"},
        {"name": "grep"},
        {"name": "planning_file_editor", "params": {"plan_path": path}},
    ]
    suffix = body["agent_settings"]["agent_context"]["system_message_suffix"]
    assert suffix.startswith("Be brief.\n\n")
    assert path in suffix


@pytest.mark.parametrize("provider", ["gitlab", "azure_devops"])
def test_plan_path_avoids_dotted_folders_where_providers_lack_them(provider: str) -> None:
    assert plan_path(inputs(git_provider=provider)) == "/workspace/project/app/agents-tmp-config/PLAN.md"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"llm_model": None}, "llm_model"),
        ({"llm_model": ""}, "llm_model"),
        ({"llm_api_key": None}, "llm_api_key"),
        ({"llm_api_key": ""}, "llm_api_key"),
    ],
)
def test_request_without_a_model_or_its_key_is_refused(change: dict[str, Any], text: str) -> None:
    with pytest.raises(LlmNotConfigured, match=text) as failure:
        build_request(inputs(**change))
    assert failure.value.reason == "llm_key_missing"


@pytest.mark.parametrize(
    "change", [{"llm_base_url": "http://localhost:8080/v1"}, {"llm_model": "ollama/qwen"}, {"llm_model": "bedrock/x"}]
)
def test_model_with_keys_from_the_machine_needs_no_key(change: dict[str, Any]) -> None:
    assert "api_key" not in build_request(inputs(llm_api_key=None, **change))["agent_settings"]["llm"]
