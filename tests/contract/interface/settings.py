"""Sections 2.1 to 2.4 and 4: settings, MCP servers and provider tokens."""

from typing import Any

from tests.contract.interface.promise import TEXT, Call, Promise

SETTINGS = "/api/settings"
TOKENS = "/api/add-git-providers"
FOLDER = "tests/api/routes/v1/settings/test_"
REFUSED = f"{FOLDER}refusals.py::test_wrong_types_and_ranges_are_named"
READ = f"{FOLDER}reading.py::test_response_has_every_field_with_masked_secrets"
DEFAULTS = f"{FOLDER}reading.py::test_empty_body_stores_the_defaults"
SERVERS = f"{FOLDER}refusals.py::test_wrong_servers_are_named"
PROVIDERS = "tests/api/routes/v1/test_provider_tokens.py::test_"
MASK = "**********"

STORED = {"message": "Settings stored"}

# The type of each field, a valid value, and a value of another type.
FIELDS: dict[str, tuple[str, Any, Any]] = {
    "language": ("string, nullable", "en", 1),
    "agent": ("string, nullable", "CodeActAgent", 1),
    "max_iterations": ("integer, nullable", 42, "42"),
    "security_analyzer": ("string, nullable", "llm", 1),
    "confirmation_mode": ("boolean, nullable", False, "false"),
    "llm_model": ("string, nullable", "openai/gpt-4o", 1),
    "llm_base_url": ("string, nullable", "https://llm.example.com/v1", 1),
    "remote_runtime_resource_factor": ("integer, nullable", 2, 1.5),
    "enable_default_condenser": ("boolean, default true", False, 0),
    "enable_sound_notifications": ("boolean, default false", True, 1),
    "enable_proactive_conversation_starters": ("boolean, default true", False, 0),
    "enable_solvability_analysis": ("boolean, default true", False, 0),
    "user_consents_to_analytics": ("boolean, nullable", False, "no"),
    "sandbox_base_container_image": ("string, nullable", "debian:12", 1),
    "sandbox_runtime_container_image": ("string, nullable", "runtime:1", 1),
    "max_budget_per_task": ("number, nullable", 2.5, "2.5"),
    "email": ("string, nullable", "alice@example.com", 1),
    "email_verified": ("boolean, nullable", True, 1),
    "git_user_name": ("string, nullable", "Alice", 1),
    "git_user_email": ("string, nullable", "alice@git.example.com", 1),
}
KEYS = ("llm_api_key", "search_api_key", "sandbox_api_key")
REMOTE = {"url": "https://mcp.example.com/a", "api_key": "mcp-key"}
STDIO = {"name": "files", "command": "npx", "args": ["-y", "files"], "env": {"TOKEN": "value"}}


def store(body: Any, path: str = SETTINGS, **expected: Any) -> Call:
    """A request that stores something and is accepted."""
    return Call("POST", path, body, **({"shows": STORED} | expected))


def shown(**fields: Any) -> Call:
    """A request that reads the stored settings, with their expected values."""
    return Call("GET", SETTINGS, shows={name.replace("__", "."): value for name, value in fields.items()})


def refused(body: Any, *location: str, path: str = SETTINGS) -> Call:
    """A request that fails validation at this location."""
    return Call("POST", path, body, 422, {"detail.0.loc": list(location), "detail.0.msg": TEXT, "detail.0.type": TEXT})


def _field(name: str) -> Promise:
    kind, value, wrong = FIELDS[name]
    nullable = [store({name: None})] if "nullable" in kind else []
    calls = (*nullable, store({name: value}), shown(**{name: value}), refused({name: wrong}, "body", name))
    return Promise("2.1", f"`{name}`: {kind}", calls, REFUSED)


def _key(name: str) -> Promise:
    calls = (
        store({name: None}),
        store({name: f"{name}-value"}),
        shown(**{name: None, f"{name}_set": True}),
        refused({name: 1}, "body", name),
    )
    return Promise("2.1", f"`{name}`: string (password format), nullable; secret", calls, READ)


def _servers(name: str, entry: dict[str, Any], masked: dict[str, Any], first: str) -> Promise:
    body, wrong = {"mcp_config": {name: [entry]}}, {"mcp_config": {name: [entry | {first: 1}]}}
    calls = (
        store(body),
        shown(**{f"mcp_config__{name}": [entry | masked]}),
        refused(wrong, "body", "mcp_config", name, "0", first),
    )
    return Promise("2.2", f"`{name}`: a list of entries with {', '.join(f'`{key}`' for key in entry)}", calls, SERVERS)


def _tokens() -> tuple[Promise, ...]:
    servers = {"mcp_config": {"sse_servers": [REMOTE]}}
    github = {"provider_tokens": {"github": {"token": "git-token", "host": None}}}
    unknown = {"provider_tokens": {"cvs": {"token": "x"}}}
    wrong: dict[str, Any] = {"provider_tokens": []}
    return (
        Promise(
            "2.3",
            "`provider_tokens`: a mapping of provider tokens",
            (
                store(github, TOKENS, shows={"message": "Git providers stored"}),
                shown(provider_tokens_set={"github": None}),
                refused(wrong, "body", "provider_tokens", path=TOKENS),
                refused(unknown, "body", "provider_tokens", path=TOKENS),
            ),
            f"{PROVIDERS}invalid_bodies_are_refused_with_their_location",
        ),
        Promise(
            "2.3",
            "`mcp_config`: an object (MCPConfig)",
            (
                store(servers, TOKENS, shows={"message": "Git providers stored"}),
                shown(mcp_config__sse_servers=[REMOTE | {"api_key": MASK}]),
                refused({"mcp_config": 1}, "body", "mcp_config", path=TOKENS),
            ),
            f"{PROVIDERS}mcp_servers_are_stored_beside_the_tokens",
        ),
    )


FIRST = (
    Promise(
        "2.1",
        "no field is required; the defaults of four booleans",
        (
            store({}),
            shown(
                enable_default_condenser=True,
                enable_sound_notifications=False,
                enable_proactive_conversation_starters=True,
                enable_solvability_analysis=True,
            ),
        ),
        DEFAULTS,
    ),
)
SECRETS = (
    Promise(
        "2.1",
        "`secrets_store`: an object with `provider_tokens` and `custom_secrets`",
        (
            store({"secrets_store": {"provider_tokens": {"gitlab": "git-token"}, "custom_secrets": {"DEPLOY": "x"}}}),
            shown(provider_tokens_set__gitlab=None, secrets_store__custom_secrets__DEPLOY__secret=MASK),
            refused({"secrets_store": 1}, "body", "secrets_store"),
        ),
        f"{FOLDER}changes.py::test_partial_update_of_secrets_keeps_the_others",
    ),
    Promise(
        "2.1",
        "`mcp_config`: an object (MCPConfig)",
        (store({"mcp_config": {}}), refused({"mcp_config": "x"}, "body", "mcp_config")),
        SERVERS,
    ),
)
PROMISES = (
    *FIRST,
    *map(_field, FIELDS),
    *map(_key, KEYS),
    *_tokens(),
    *SECRETS,
    _servers("sse_servers", REMOTE, {"api_key": MASK}, "url"),
    _servers("stdio_servers", STDIO, {"env": {"TOKEN": MASK}}, "command"),
    _servers("shttp_servers", REMOTE, {"api_key": MASK, "timeout": None}, "url"),
)
