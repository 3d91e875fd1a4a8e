"""The body of POST /api/conversations, built from a user's settings and a start request. Pure functions.

It uses `agent_settings`, from which the agent server builds the agent (wire contract 3.3). Three values are left out
on purpose: the title (the server ignores it in this request, see `AgentServer.rename_conversation`), the parent (it
would have to be in the same sandbox) and the budget (the server supports none: the worker compares it with the cost
that webhooks report, and ends the work by `AgentServer.interrupt`).

MCP servers come from the three lists of the settings, and become the agent server's map of name to server.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from shared.agent_server import paths
from shared.errors import WorkspaceError
from shared.redaction import secrets_of_token
from shared.users.llm_profiles import secrets_of_llm
from shared.users.mcp_config import enabled_servers, free_name, secrets_of_servers, to_map, with_credentials
from shared.users.secrets import MAX_VALUE_BYTES, CustomSecret, check_requested, is_usable
from shared.users.settings import StoredSettings
from shared.users.settings_store import can_call
from shared.users.settings_v1 import DEFAULT_ANALYZER, DEFAULT_ITERATIONS

Body = dict[str, Any]
Server = dict[str, Any]

# Switches that V1's clients store and the agent server refuses: `tools` replaced them.
RETIRED_SWITCHES = ("enable_sub_agents", "enable_switch_llm_tool")
# The agent server refuses tags with other names or longer values. These stay in the store, where clients read them.
TAG_NAME = re.compile(r"[a-z0-9]+")
MAX_TAG_LENGTH = 256
# The agent server's profile with the LLM that generates titles.
TITLE_PROFILE = "aw-title"
# The MCP server to which `search_api_key` gives access.
SEARCH_URL = "https://mcp.tavily.com/mcp/"


class LlmNotConfigured(WorkspaceError):
    """The settings name no model, or have no key for it."""

    reason: ClassVar[str] = "llm_key_missing"


class UnusableSecret(WorkspaceError):
    """A secret's name is reserved, or the request has too many secrets, or a secret is too large."""

    reason: ClassVar[str] = "unusable_secret"


@dataclass(frozen=True)
class AgentInputs:
    """The inputs of a conversation's start; a repr shows no secret."""

    conversation_id: str
    working_dir: str
    settings: StoredSettings
    # The LLM that generates the title, if it is not the agent's own; it is stored as TITLE_PROFILE before the request.
    title_llm: Mapping[str, Any] | None = field(default=None, repr=False)
    secrets: Mapping[str, CustomSecret] = field(default_factory=dict)
    provider_tokens: Mapping[str, str] = field(default_factory=dict, repr=False)
    user_id: str | None = None
    # The fields below come from the start request.
    requested_model: str | None = None
    requested_secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    initial_message: Mapping[str, Any] | None = field(default=None, repr=False)
    system_message_suffix: str | None = None
    plugins: Sequence[Mapping[str, Any]] = ()
    title: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    agent_type: str = "default"
    git_provider: str | None = None


def build_request(inputs: AgentInputs) -> Body:
    """Build the request body, with its secrets in clear text.

    Raises:
        LlmNotConfigured: the settings name no model, or no key for it.
        UnusableSecret: see `check_secrets`.
    """
    check_secrets(inputs.requested_secrets)
    body: Body = {
        "conversation_id": inputs.conversation_id,
        "workspace": {"kind": "LocalWorkspace", "working_dir": inputs.working_dir},
        "agent_settings": _agent_settings(inputs),
        "confirmation_policy": {"kind": _confirmation_policy(inputs)},
        "security_analyzer": {"kind": "LLMSecurityAnalyzer"} if _uses_analyzer(inputs) else None,
        "max_iterations": inputs.settings.max_iterations or DEFAULT_ITERATIONS,
        "secrets": serialize_secrets(gather_secrets(inputs.provider_tokens, inputs.secrets, inputs.requested_secrets)),
        "initial_message": _initial_message(inputs),
        "plugins": [_without_nulls(plugin, "source", "ref", "repo_path") for plugin in inputs.plugins] or None,
        "tags": _usable_tags(inputs.tags),
        "autotitle": not inputs.title,
        "title_llm_profile": TITLE_PROFILE if inputs.title_llm else None,
        "user_id": inputs.user_id,
    }
    return {name: value for name, value in body.items() if value is not None}


def secret_values(inputs: AgentInputs) -> list[str]:
    """Every secret in the inputs, for `redaction.redacting`."""
    settings = inputs.settings
    nested = settings.agent_settings
    llm = {"api_key": settings.llm_api_key, "base_url": settings.llm_base_url} | nested.get("llm", {})
    critic = nested.get("verification", {})
    values = [settings.search_api_key, critic.get("critic_api_key")]
    values += [secret for token in inputs.provider_tokens.values() for secret in secrets_of_token(token)]
    values += inputs.requested_secrets.values()
    values += [secret.value for secret in inputs.secrets.values()]
    values += secrets_of_servers(settings.mcp_config)
    for configuration in (llm, critic, inputs.title_llm or {}):
        values += secrets_of_llm(configuration)
    return [value for value in values if value]


def check_secrets(secrets: Mapping[str, str]) -> None:
    """Check a start request's secrets against the limits and the reserved names.

    Raises:
        UnusableSecret: a secret can't be used. The message quotes no value, and no text that may be a value.
    """
    try:
        check_requested(secrets)
    except ValueError as error:
        raise UnusableSecret(str(error)) from None
    for name, value in secrets.items():
        if len(value.encode()) > MAX_VALUE_BYTES:
            raise UnusableSecret(f"the secret {name!r} is larger than {MAX_VALUE_BYTES} bytes")


def gather_secrets(
    tokens: Mapping[str, str], stored: Mapping[str, CustomSecret], requested: Mapping[str, str]
) -> dict[str, CustomSecret]:
    """All secrets by name. A requested secret overrides a stored one of the same name, and a stored one a token.

    Args:
        tokens: git provider tokens by provider; `github` becomes GITHUB_TOKEN.
        stored: the user's custom secrets. A secret whose name became reserved after it was stored is left out: it
            must not fail every start.
        requested: the start request's secrets, which `check_secrets` has accepted.
    """
    of_tokens = {f"{name.upper()}_TOKEN": CustomSecret(token, f"Token for {name}") for name, token in tokens.items()}
    usable = {name: secret for name, secret in stored.items() if is_usable(name)}
    return of_tokens | usable | {name: CustomSecret(value, None) for name, value in requested.items()}


def serialize_secrets(secrets: Mapping[str, CustomSecret]) -> dict[str, dict[str, Any]]:
    """The `secrets` field of the agent server's request."""
    return {
        name: {"kind": "StaticSecret", "value": secret.value, "description": secret.description}
        for name, secret in secrets.items()
    }


def plan_path(inputs: AgentInputs) -> str:
    """The path of the plan of an agent of type `plan`."""
    return f"{inputs.working_dir}/{paths.plan(inputs.git_provider)}"


def map_servers(mcp_config: Mapping[str, Any] | None, search_api_key: str | None) -> dict[str, Server]:
    """The MCP servers for `agent_settings` that are switched on, in the order of the lists.

    Args:
        mcp_config: the lists, see `shared.users.mcp_config`.
        search_api_key: if set, the search engine's server is added.
    """
    servers = to_map(enabled_servers(mcp_config))
    if search_api_key:
        # The key is sent in a header, because the agent server's state events quote URLs in clear text.
        servers[free_name("tavily", set(servers))] = {"transport": "http", "url": SEARCH_URL, "auth": search_api_key}
    return with_credentials(servers)


def _agent_settings(inputs: AgentInputs) -> Body:
    nested = inputs.settings.agent_settings
    settings: Body = {
        **{name: value for name, value in nested.items() if name not in RETIRED_SWITCHES},
        "agent_kind": "openhands",
        "llm": _llm(inputs),
        "condenser": _condenser(inputs),
        "mcp_config": map_servers(inputs.settings.mcp_config, inputs.settings.search_api_key),
        "agent_context": _agent_context(inputs),
    }
    if inputs.agent_type == "plan":
        editor = {"name": "planning_file_editor", "params": {"plan_path": plan_path(inputs)}}
        settings["tools"] = [{"name": "glob"}, {"name": "grep"}, editor]
    return settings


def _llm(inputs: AgentInputs) -> Body:
    settings = inputs.settings
    model = inputs.requested_model or settings.llm_model
    if not model:
        raise LlmNotConfigured("no LLM model is set: store llm_model in the settings")
    if not can_call(settings, model):
        raise LlmNotConfigured(f"no API key is set for {model}: store llm_api_key in the settings")
    llm = {"model": model, "api_key": settings.llm_api_key or None, "base_url": settings.llm_base_url or None}
    # As V1 does: the web UI shows an answer while the model writes it.
    kept = {**settings.agent_settings.get("llm", {}), "usage_id": "agent", "stream": True}
    return {**kept, **_without_nulls(llm, *llm)}


def _condenser(inputs: AgentInputs) -> Body:
    settings = inputs.settings
    nested = settings.agent_settings.get("condenser", {})
    condenser: Body = {**nested, "enabled": settings.enable_default_condenser}
    if settings.condenser_max_size:
        condenser["max_size"] = settings.condenser_max_size
    return condenser


def _agent_context(inputs: AgentInputs) -> Body:
    # The project's skills are files in the sandbox. Public skills would be fetched from the network.
    stored = inputs.settings.agent_settings.get("agent_context", {})
    context: Body = {**stored, "load_project_skills": True, "load_user_skills": False, "load_public_skills": False}
    if inputs.settings.disabled_skills:
        context["disabled_skills"] = inputs.settings.disabled_skills
    suffixes = [stored.get("system_message_suffix", ""), inputs.system_message_suffix or "", _plan_suffix(inputs)]
    if any(suffixes):
        context["system_message_suffix"] = "\n\n".join(suffix for suffix in suffixes if suffix)
    return context


def _plan_suffix(inputs: AgentInputs) -> str:
    if inputs.agent_type != "plan":
        return ""
    return (
        "Plan this task, and do not execute the plan. Read as much of the project as you need, then write the plan "
        f"to {plan_path(inputs)}: the goal, the current state, the steps in order, and how to check each of them."
    )


def _confirmation_policy(inputs: AgentInputs) -> str:
    if not inputs.settings.confirmation_mode:
        return "NeverConfirm"
    return "ConfirmRisky" if _uses_analyzer(inputs) else "AlwaysConfirm"


def _uses_analyzer(inputs: AgentInputs) -> bool:
    return (inputs.settings.security_analyzer or DEFAULT_ANALYZER) == DEFAULT_ANALYZER


def _initial_message(inputs: AgentInputs) -> Body | None:
    message = inputs.initial_message
    if message is None:
        return None
    texts = [{"type": "text", "text": text} for text in _plugin_texts(inputs.plugins)]
    # The server runs the agent after an initial message in any case; `run` says so in its record.
    return {"role": message.get("role") or "user", "content": [*message["content"], *texts], "run": True}


def _plugin_texts(plugins: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"Parameters of the plugin {plugin['source']}:"
        + "".join(f"\n- {name}: {value}" for name, value in plugin["parameters"].items())
        for plugin in plugins
        if plugin.get("parameters")
    ]


def _usable_tags(tags: Mapping[str, str]) -> dict[str, str]:
    names = [name for name in tags if TAG_NAME.fullmatch(name) and len(tags[name]) <= MAX_TAG_LENGTH]
    return {name: tags[name] for name in names}


def _without_nulls(entry: Mapping[str, Any], *names: str) -> Body:
    return {name: entry[name] for name in names if entry.get(name) is not None}
