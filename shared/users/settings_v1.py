"""V1's nested settings and V0's flat ones: two views of the same values (wire contract 1.7). Pure functions.

A value with a flat name is stored under that name only. All other V1 values are stored in `agent_settings`.
"""

from collections.abc import Mapping
from typing import Any

from shared.users.llm_profiles import Llm, have_same_server, mask_llm, mask_urls
from shared.users.mcp_config import MASK, mask_servers, to_map, with_credentials
from shared.users.settings import StoredSettings

Nested = dict[str, Any]

DEFAULT_AGENT = "CodeActAgent"
DEFAULT_CONDENSER_SIZE = 240
DEFAULT_ITERATIONS = 500
# The number of a conversation's first events that a condenser keeps.
DEFAULT_KEPT = 2
DEFAULT_ANALYZER = "llm"
NO_ANALYZER = "none"
ANALYZERS = (DEFAULT_ANALYZER, NO_ANALYZER)
LLM_FIELDS = {"model": "llm_model", "api_key": "llm_api_key", "base_url": "llm_base_url"}
CONDENSER_FIELDS = {"enabled": "enable_default_condenser", "max_size": "condenser_max_size"}
# In the flat view, null keeps these; in the nested view, it clears them. A key is shown as null, so null keeps it.
CLEARED_BY_NULL = ("llm_model", "llm_base_url")


def flatten(diff: Mapping[str, Any]) -> dict[str, Any]:
    """The changes in a diff of the agent's settings, by the names they are stored under."""
    remaining = dict(diff)
    changes: dict[str, Any] = {name: remaining.pop(name) for name in ("agent", "mcp_config") if name in remaining}
    for section, fields in (("llm", LLM_FIELDS), ("condenser", CONDENSER_FIELDS)):
        if section in remaining:
            flat, remaining[section] = _take(remaining[section], fields)
            changes |= flat
    for name in CLEARED_BY_NULL:
        if name in changes and changes[name] is None:
            changes[name] = ""
    remaining.pop("agent_kind", None)
    return changes | {"agent_settings": remaining}


def current_llm(stored: StoredSettings) -> Llm:
    """The current LLM configuration, secrets in clear, without unset values."""
    known = {name: getattr(stored, flat) for name, flat in LLM_FIELDS.items()}
    extra: Llm = stored.agent_settings.get("llm", {})
    return {name: value for name, value in known.items() if value} | extra


def with_stored_key(llm: Llm, stored: StoredSettings) -> Llm:
    """A saved configuration; without a key, with that of the settings if this was stored for the same LLM server."""
    if "api_key" in llm or not stored.llm_api_key or not have_same_server(llm, current_llm(stored)):
        return llm
    return llm | {"api_key": stored.llm_api_key}


def nest(stored: StoredSettings, *, expose: bool) -> Nested:
    """The agent's settings as V1 shows them. Secrets are included only with `expose`."""
    extra = stored.agent_settings
    servers = stored.mcp_config or {}
    return (extra if expose else _mask_critic(extra)) | {
        "agent_kind": "openhands",
        "agent": stored.agent or DEFAULT_AGENT,
        "llm": _serialize_llm(stored, expose=expose),
        "condenser": extra.get("condenser", {})
        | {
            "enabled": stored.enable_default_condenser,
            "max_size": stored.condenser_max_size or DEFAULT_CONDENSER_SIZE,
        },
        "mcp_config": with_credentials(to_map(servers if expose else mask_servers(servers))),
    }


def nest_conversation(stored: StoredSettings) -> Nested:
    """The conversations' settings as V1 shows them."""
    analyzer = security_analyzer(stored)
    return {
        "schema_version": 1,
        "max_iterations": stored.max_iterations or DEFAULT_ITERATIONS,
        "confirmation_mode": bool(stored.confirmation_mode),
        # V0 has more analyzers; V1's clients know these two values.
        "security_analyzer": analyzer if analyzer in ANALYZERS else None,
    }


def can_condense(stored: StoredSettings) -> bool:
    """Whether the agent server accepts the condenser: it needs events to condense between the first and the last."""
    extra = stored.agent_settings.get("condenser", {})
    if not stored.enable_default_condenser or extra.get("condenser_kind") == "no_op":
        return True
    size = stored.condenser_max_size or DEFAULT_CONDENSER_SIZE
    return bool(extra.get("keep_first", DEFAULT_KEPT) < size // 2 - 1)


def security_analyzer(stored: StoredSettings) -> str:
    """The security analyzer in effect."""
    return stored.security_analyzer or DEFAULT_ANALYZER


def flatten_conversation(diff: Mapping[str, Any]) -> dict[str, Any]:
    """The changes in a diff of the conversations' settings, by the names they are stored under."""
    analyzer = {"security_analyzer": diff.get("security_analyzer") or NO_ANALYZER}
    return dict(diff) | (analyzer if "security_analyzer" in diff else {})


def _take(section: Nested | None, fields: Mapping[str, str]) -> tuple[Nested, Nested | None]:
    """A section's values with flat names, and the rest of it. Null in place of a section is null for all its fields."""
    if section is None:
        return dict.fromkeys(fields.values()), None
    flat = {fields[name]: value for name, value in section.items() if name in fields}
    return flat, {name: value for name, value in section.items() if name not in fields}


def _serialize_llm(stored: StoredSettings, *, expose: bool) -> Llm:
    unset: Llm = dict.fromkeys(LLM_FIELDS)
    llm = current_llm(stored)
    return unset | (llm if expose else mask_llm(llm) | {"api_key": None})


def _mask_critic(extra: Nested) -> Nested:
    shown = mask_urls(extra.get("verification", {}))
    key = {"critic_api_key": MASK} if shown.get("critic_api_key") else {}
    return extra | ({"verification": shown | key} if shown else {})
